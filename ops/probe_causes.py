"""Why probes are missing, or came by a slower road than they should: what is wrong, and what mends it.

What a probe can see goes first: where its messages stopped. Then the usual suspects of that stage.
"""

from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from db import catalog, oversight
from db.control import EVERYTHING
from ops import show
from ops.diagnose_stream import judge_slot
from ops.diagnosis import MIGRATE, Finding, fail
from ops.probing import Run
from runtime.settings import Settings

#: A worker that is silent for longer is being rescued from; the steward's number.
SILENT_SECONDS = 15.0


def causes(conn: Connection[Any], settings: Settings, run: Run) -> list[Finding]:
    """Return what is wrong.

    The publication is judged even when every probe came through: the relay polls the table once it has
    noticed that the stream passes nothing, and a canary must not be content with that.

    Raises:
        DatabaseError: the server is away.

    """
    found = [*_publication(conn, settings)]
    if not run.missing:
        return found
    found += _quarantined(run)
    stuck = [probe for probe in run.probes if not probe.ended]
    claimed = [probe for probe in stuck if probe.claimed_at is not None]
    if claimed:
        workers = ", ".join(sorted({str(probe.worker) for probe in claimed}))
        found.append(
            fail(
                "worker",
                f"{len(claimed)} claimed and not finished, by {workers}",
                "see that worker's log; another one takes them over some 15 s after its death",
            )
        )
    if len(claimed) < len(stuck):
        found += _not_claimed(conn, settings, run)
    return found


def _publication(conn: Connection[Any], settings: Settings) -> Iterator[Finding]:
    """Judge the publication where it counts: wal2json needs none."""
    slot = catalog.slot(conn, settings.slot)
    plugin = slot.plugin if slot is not None else settings.decoder
    if plugin != "wal2json" and "outbox" not in catalog.published(conn, settings.publication):
        yield fail(
            "publication",
            f"{settings.publication} does not pass inserts into outbox: jobs come by polling only",
            MIGRATE,
        )


def _quarantined(run: Run) -> Iterator[Finding]:
    for reason, who in sorted(
        {(p.quarantined or "", p.quarantined_by or "") for p in run.probes if p.quarantined}
    ):
        yield fail(
            "quarantine",
            f"put aside by {who}: {reason}",
            "a process of an older version is at work: end it, or wait until the rollout has",
        )


def _not_claimed(conn: Connection[Any], settings: Settings, run: Run) -> Iterator[Finding]:
    (everything,) = oversight.lanes(conn, EVERYTHING)
    if everything["paused"]:
        yield fail(
            "pause",
            f"dispatch is paused by {everything['paused_by']}: {everything['paused_reason']}",
            "probes wait like every job: oncommit dispatch resume",
        )
    if run.redis is not None:
        yield fail("Redis", run.redis, "start it: what it held is published again by itself")
    elif run.stages["published"].passed == 0:
        yield from _not_published(conn, settings)
    workers = oversight.workers(conn)
    if not any(row["silent_seconds"] < SILENT_SECONDS for row in workers):
        yield fail(
            "worker", f"none has been heard for {SILENT_SECONDS:g} s", "start one: dramatiq actors:setup"
        )
    elif run.redis is None and run.stages["published"].passed and not everything["paused"]:
        yield fail(
            "worker",
            "what was published was not taken: every thread is busy, or no worker reaches this Redis",
            "oncommit workers list, oncommit dispatch status; start more workers",
        )


def _not_published(conn: Connection[Any], settings: Settings) -> Iterator[Finding]:
    slot = catalog.slot(conn, settings.slot)
    if slot is None or not slot.here or not slot.active:
        # As the doctor says it: a relay that polls meanwhile is not to be started.
        found = judge_slot(conn, settings.slot, slot)
        yield fail("relay", f"the slot {found.detail}", found.advice)
        return
    yield fail(
        "relay",
        f"it reads the WAL and published nothing; {show.size(slot.lag_bytes)} not confirmed",
        "see the relay's log and health page, and that ONCOMMIT_REDIS_URL and ONCOMMIT_NAMESPACE are its own",
    )
