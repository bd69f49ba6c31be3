"""Follow a batch by its event stream, and list its jobs: no job is asked about while it is on its way."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

from ops.client import Client
from ops.following import Followed

# A stream that ended early is opened again after so long: the portal stops, or has too many.
AGAIN_SECONDS = 1.0
# The portal sends a comment every 15 s: a connection that is silent for twice that is none.
SILENT_SECONDS = 30.0
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
        for news in _progress(client, seen, left):
            seen = news
            show(seen)
        if not seen["finished"] and (left := deadline - time.monotonic()) > 0:
            client.wait(min(AGAIN_SECONDS, left))
            seen = client.get(seen["links"]["self"])  # here the patience ends, when the portal stays away
            show(seen)
    return seen


def _progress(client: Client, batch: Mapping[str, Any], seconds: float) -> Iterator[Mapping[str, Any]]:
    """Yield the batch at each event after `batch`; end with the stream, its connection, or the time."""
    deadline = time.monotonic() + seconds
    silent = min(SILENT_SECONDS, seconds)
    with (
        suppress(httpx.HTTPError),
        client.stream(batch["links"]["events"], last=str(batch["events"]), silent_seconds=silent) as lines,
    ):
        for line in lines:
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
            if time.monotonic() > deadline:
                return


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
