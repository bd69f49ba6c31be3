"""Follow a batch by its event stream, and list its jobs: no job is asked about while it is on its way."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ops.client import Client
from ops.event_stream import AGAIN_SECONDS, events
from ops.following import Followed

PAGE = 100  # the most that the portal lists at once


def follow_batch(
    client: Client,
    batch: Mapping[str, Any],
    show: Callable[[Mapping[str, Any]], None],
    *,
    timeout_seconds: float,
) -> Mapping[str, Any]:
    """Follow a batch until it is finished or the time is up; return it as last seen.

    Raises:
        PortalError: the portal does not answer within the client's patience.

    """
    deadline = time.monotonic() + timeout_seconds
    seen = batch
    show(seen)
    while not seen["finished"] and (left := deadline - time.monotonic()) > 0:
        for news in events(client, seen["links"]["events"], last=seen["events"], seconds=left):
            seen = news
            show(seen)
        if not seen["finished"] and (left := deadline - time.monotonic()) > 0:
            client.wait(min(AGAIN_SECONDS, left))
            seen = client.get(seen["links"]["self"])  # here the patience ends, when the portal stays away
            show(seen)
    return seen


def jobs_of(client: Client, batch: Mapping[str, Any], *, replayed: bool) -> list[Followed]:
    """Return the batch's jobs as they are now, in the order in which they were asked for.

    Raises:
        PortalError: they cannot be had.

    """
    found: list[Followed] = []
    query = {"batch": str(batch["id"]), "limit": str(PAGE)}
    while True:
        page = client.get("/v1/jobs", query)
        found += (Followed.of(job, replayed=replayed) for job in page["jobs"])
        if page["next"] is None:
            return found[::-1]  # the portal lists the newest first
        query["cursor"] = page["next"]


def tally(batch: Mapping[str, Any]) -> str:
    """Return how far a batch is, as one line."""
    counts = ", ".join(f"{count} {status}" for status, count in batch["counts"].items() if count)
    return f"batch {batch['id']}: {counts}"
