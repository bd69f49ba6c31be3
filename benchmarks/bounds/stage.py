"""The stage of a measurement: one world with production's settings, and SQL that commits work."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from tests.chaos.world import World

#: A measure's values by the keys of its bounds.
Measured = Mapping[str, float]
DIGEST = "sha256:" + "0" * 64
DOCUMENT = "INSERT INTO documents (team, digest, size) VALUES (%s, %s, 1) ON CONFLICT DO NOTHING"
ACCEPT = """
SELECT outcome FROM accept_jobs(%s, %s, %s, %s, false, %s::uuid[], %s::text[], %s::text[], %s::text[],
                                %s::smallint[], %s::int[], %s::text[], NULL, 'bounds')
"""
MANY = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
SELECT m, 'previews', %(team)s, 5, preview_message(m, 'previews', gen_random_uuid(), 1, NULL, now())
  FROM (SELECT %(team)s || '|' || gen_random_uuid() || '.1' AS m FROM generate_series(1, %(count)s)) AS rows
"""
RETAINED = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s"
TAKEN = "SELECT count(DISTINCT job) FROM job_events WHERE job = ANY(%s) AND type IN ('rescued', 'released')"
ATTEMPTS = "SELECT max(attempt) FROM jobs WHERE id = ANY(%s)"
SUCCEEDED = "SELECT count(*) FROM jobs WHERE id = ANY(%s) AND status = 'succeeded'"
#: What production has; the chaos suite's own settings are shorter.
PRODUCTION = {
    "ONCOMMIT_WORKER_LOST_SECONDS": "15",
    "ONCOMMIT_SHUTDOWN_GRACE_SECONDS": "20",
    "ONCOMMIT_AUDIT_SECONDS": "60",
    "ONCOMMIT_BACKOFF_BASE_MS": "1000",
}
LOOK_SECONDS = 0.005


class Stage:
    """Work for a world, and a clock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.messages = "oncommit:previews:messages"

    @property
    def admin(self) -> psycopg.Connection:
        """Return the superuser's connection."""
        return self.world.admin

    def start(self, **given: Any) -> None:
        """Start processes without a portal: work is committed by SQL."""
        self.world.start(**{"portals": 0, "relays": 1, "workers": 1, "direct": True, **PRODUCTION, **given})

    def document(self, team: str = "free") -> str:
        """Make a document known and put its bytes into the store."""
        self.admin.execute(DOCUMENT, [team, DIGEST])
        path = Path(self.world.processes.blobs, "00", "0" * 64)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"bounds")
        return DIGEST

    def accept(self, team: str = "free", count: int = 1, simulate: str | None = None) -> list[UUID]:
        """Commit so many jobs in one transaction."""
        self.document(team)
        ids = [uuid4() for _ in range(count)]
        rows = (
            ["page"] * count, [DIGEST] * count, [None] * count, [5] * count, [5] * count, [simulate] * count,
        )  # fmt: skip
        batch = uuid4() if count > 1 else None
        row = self.admin.execute(ACCEPT, [team, str(uuid4()), b"f" * 32, batch, ids, *rows]).fetchone()
        assert row == ("new",), row
        return ids

    def intents(self, count: int, team: str = "paused") -> None:
        """Commit so many intents without jobs in one transaction: they are published, and wait if paused."""
        self.admin.execute(MANY, {"team": team, "count": count})

    def pause(self) -> None:
        """Make the teams and pause `paused`, so that what waits there is not taken."""
        self.world.make_teams()
        self.world.pause("paused", paused=True)

    def in_redis(self) -> int:
        """Return how many messages Redis holds; 0 while it is away."""
        try:
            return int(self.world.valkey.client.hlen(self.messages))  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 -- away, frozen or loading: it holds nothing that counts
            return 0

    def started(self, job: UUID, *, after: int = 0) -> bool:
        """Tell whether the render log has more than `after` starts of the job."""
        lines = self.world.processes.renders()
        return sum(line["phase"] == "start" and line["job"] == str(job) for line in lines) > after

    def succeeded(self, jobs: Sequence[UUID]) -> bool:
        """Tell whether all of these jobs have succeeded."""
        return self.number(SUCCEEDED, list(jobs)) == len(jobs)

    def retained_mb(self) -> float:
        """Take a checkpoint, as time would, and return how much WAL the slot keeps, MB."""
        self.admin.execute("CHECKPOINT")
        return self.number(RETAINED, self.world.database.slot) / (1 << 20)

    def cost(self, jobs: Sequence[UUID]) -> Measured:
        """Return how many of the jobs were taken from a worker, and the most attempts spent in vain."""
        return {
            "taken-for-dead": self.number(TAKEN, list(jobs)),
            "attempts": self.number(ATTEMPTS, list(jobs)) - 1,
        }

    def number(self, query: str, *values: Any) -> float:
        """Return the one number of a query."""
        row = self.admin.execute(query, values).fetchone()  # type: ignore[arg-type]
        return float(row[0]) if row and row[0] is not None else 0.0

    def peak_mb(self) -> float:
        """Return the most memory that the first relay ever had resident, MB."""
        status = Path(f"/proc/{self.world.of('relay')[0].running.pid}/status").read_text(encoding="utf-8")
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024


def seconds_until(condition: Callable[[], Any], limit: float, *, every: float = LOOK_SECONDS) -> float:
    """Return how long it takes until the condition holds, asking each `every` seconds.

    Raises:
        TimeoutError: longer than `limit`, so whatever the bound, it is missed.

    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise TimeoutError(f"not within {limit:g} s")
        time.sleep(every)
    return time.monotonic() - began
