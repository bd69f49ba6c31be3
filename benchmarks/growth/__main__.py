"""Growth: what many jobs, retries and worker restarts leave behind, on the embedded stack.

`python -m benchmarks.growth [--jobs 5000] [--restarts 20]` (in full: `--jobs 200000 --restarts 50`); 2 % of
the jobs fail once, and a render costs next to nothing (ready.py). Every other restart is a SIGKILL. Exit 1
unless every job succeeded, Redis is back at its baseline, `outbox` and its indexes stay below 20 MB at every
look, and no process left anything: no process, temporary file, socket or shared memory (leftovers.py); nor a
row but a killed worker's, which is kept for a day, for whoever asks what happened.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg
import redis
from rich.console import Console
from rich.table import Table

from benchmarks.growth import leftovers
from benchmarks.growth.leftovers import Kept
from ops import services
from ops.stack import Stack, StackPlan

BATCH = 500
#: So many are unfinished at most: a churning outbox, not a backlog.
AHEAD = 2_000
RETRIES = 50  # each 50th job fails once: 2 %
WORKERS, THREADS = 2, 4
RENDERERS = WORKERS * THREADS  # one for each thread at most
#: In place of `actors:setup`: half of the time of such a run would be Pillow's.
SETUP = "benchmarks.growth.worker:setup"
OUTBOX_MB = 20.0
REDIS_MB = 1.0
#: A killed worker's claims are rescued, and its consumer forgotten by Redis, within this; seconds.
REST_SECONDS = 60.0
WARM_UP = 200

SIZE: LiteralString = "SELECT pg_total_relation_size('outbox')"
# An intent lives as long as its job is unfinished; `jobs` would be read as a whole, five times a second.
LEFT: LiteralString = "SELECT count(*) FROM outbox"
COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM jobs WHERE status = 'succeeded'), (SELECT count(*) FROM jobs),
       (SELECT count(*) FROM job_events WHERE type IN ('failed', 'rescued', 'released')),
       (SELECT count(*) FROM outbox), (SELECT count(*) FROM workers),
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox')
"""


@dataclass(slots=True)
class Grown:
    """What was measured: sizes in MB; `keys` of Redis with the names of consumers left out."""

    outbox_peak: float = 0.0
    keys: Sequence[str] = ()
    redis_mb: float = 0.0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    kept: Kept = field(default_factory=lambda: Kept({}, {}))


class Farm:
    """The running stack, and what this script does with it."""

    def __init__(
        self, stack: Stack, http: httpx.Client, admin: psycopg.Connection[Any], temporary: Path
    ) -> None:
        self.stack, self.http, self.admin, self.temporary = stack, http, admin, temporary
        self.redis = redis.Redis.from_url(stack.redis_url)
        self.workers = [service for service in stack.services if service.name.startswith("worker")]
        self.peak = 0.0
        self.killed = 0
        self.restarted = 0
        self.sent = 0
        put = http.put("/v1/documents", content=b"# Growth\n", headers={"Content-Type": "text/markdown"})
        self.document: str = put.raise_for_status().json()["document"]

    def number(self, query: LiteralString) -> int:
        """Return the one number of a query."""
        row = self.admin.execute(query).fetchone()
        return int(row[0]) if row else 0

    def send(self, count: int) -> None:
        """Post one batch."""
        jobs = [
            {"document": self.document, "kind": "thumbnail"}
            | ({"simulate": {"fail_first": 1}} if (self.sent + n) % RETRIES == 0 else {})
            for n in range(count)
        ]
        key = {"Idempotency-Key": f"growth-{self.sent}"}
        self.http.post("/v1/batches", json={"jobs": jobs}, headers=key).raise_for_status()
        self.sent += count

    def look(self) -> int:
        """Note the size of the outbox; return how many jobs are unfinished."""
        self.peak = max(self.peak, self.number(SIZE) / 1e6)
        return self.number(LEFT)

    def run(self, count: int, restarts: int) -> None:
        """Send so many jobs, and restart a worker at even distances."""
        until, done, first = self.sent + count, 0, self.sent
        left = self.look()
        while self.sent < until or left or done < restarts:
            if self.sent < until and left < AHEAD:
                self.send(min(BATCH, until - self.sent))
            left = self.look()
            # Jobs may end faster than workers start: those restarts that are left over come at the end.
            if done < restarts and (self.sent - left - first) >= (done + 1) * count // (restarts + 1):
                self.restart(done)
                self.restarted += 1
                done += 1
            time.sleep(0.2)

    def restart(self, n: int) -> None:
        """End a worker, every other time without a word, and start it again."""
        service = self.workers[n % WORKERS]
        if n % 4 > 1:  # each worker in turn: twice in order, twice killed
            service.process.kill()
            self.killed += 1
        else:
            service.process.end()
        service.start()
        service.wait()

    def rest(self, keys: Sequence[str], kept: Kept | None = None) -> Grown:
        """Wait until everything is as it was, or the time is up, and measure."""
        deadline = time.monotonic() + REST_SECONDS
        while time.monotonic() < deadline and (
            self.keys() != keys
            or self.look()
            or (kept and leftovers.look(self.stack, self.temporary).grown(kept, RENDERERS))
        ):
            time.sleep(0.5)
        row = self.admin.execute(COUNTS).fetchone() or ()
        names = ("succeeded", "jobs", "again", "intents", "workers", "dead_tuples")
        memory: Any = self.redis.info("memory")
        return Grown(
            outbox_peak=self.peak,
            keys=self.keys(),
            redis_mb=memory["used_memory"] / 1e6,
            counts=dict(zip(names, row, strict=True)),
            kept=leftovers.look(self.stack, self.temporary),
        )

    def settled(self) -> Sequence[str]:
        """Return the keys once they have stayed the same for two seconds."""
        deadline, last, since = time.monotonic() + REST_SECONDS, self.keys(), time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since < 2.0:
            time.sleep(0.2)
            if (now := self.keys()) != last:
                last, since = now, time.monotonic()
        return last

    def keys(self) -> Sequence[str]:
        """Return the names of Redis' keys, without those that tell that a consumer waits."""
        found = {re.sub(r"held:.*", "held:", key.decode()) for key in self.redis.scan_iter(count=1000)}
        return sorted(key for key in found if not key.endswith(":wake"))


def faults(before: Grown, after: Grown, jobs: int, killed: int) -> list[str]:
    """Return what is not as it has to be."""
    wanted = {
        f"{jobs} jobs succeeded": after.counts["succeeded"] == after.counts["jobs"] == jobs,
        f"workers are {WORKERS} and at most {killed} killed": after.counts["workers"] <= WORKERS + killed,
        "no intent is left": after.counts["intents"] == 0,
        f"Redis is back within {REDIS_MB:g} MB": after.redis_mb <= before.redis_mb + REDIS_MB,
        "Redis has the keys it had": after.keys == before.keys,
        f"the outbox stayed below {OUTBOX_MB:g} MB": after.outbox_peak < OUTBOX_MB,
    }
    found = [text for text, held in wanted.items() if not held]
    return found + [f"no more than before: {text}" for text in after.kept.grown(before.kept, RENDERERS)]


def table(before: Grown, after: Grown, restarts: int, seconds: float) -> Table:
    """Return what was measured, for humans."""
    found = Table(
        "what", "before", "after", title=f"{restarts} restarts, {seconds:.0f} s, {os.cpu_count()} CPUs"
    )
    for name in before.counts:
        found.add_row(name, str(before.counts[name]), str(after.counts[name]))
    found.add_row("outbox with indexes, peak, MB", f"{before.outbox_peak:.2f}", f"{after.outbox_peak:.2f}")
    found.add_row("Redis memory, MB", f"{before.redis_mb:.2f}", f"{after.redis_mb:.2f}")
    found.add_row("Redis keys", str(len(before.keys)), str(len(after.keys)))
    for what, count in after.kept.counts.items():
        found.add_row(what, str(before.kept.counts[what]), str(count))
    return found


def main() -> int:
    """Run; return 0 when nothing grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--restarts", type=int, default=20)
    given = parser.parse_args()
    services.WORKER = tuple(SETUP if word == "actors:setup" else word for word in services.WORKER)
    os.environ |= {"ONCOMMIT_WORKER_LOST_SECONDS": "5", "ONCOMMIT_BACKOFF_BASE_MS": "200"}
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="oncommit-growth-") as folder:
        Path(folder).chmod(0o711)  # the servers' account enters it
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        temporary.chmod(0o1777)
        os.environ["TMPDIR"] = str(temporary)
        plan = StackPlan(home=Path(folder, "home"), workers=WORKERS, threads=THREADS)
        with (
            Stack(plan, say=lambda text: console.print(text, style="dim")) as stack,
            psycopg.connect(stack.reach.owner, autocommit=True) as admin,
            httpx.Client(
                base_url=stack.portals[0],
                headers={"Authorization": f"Bearer {stack.token}"},
                timeout=60,
                trust_env=False,
            ) as http,
        ):
            farm = Farm(stack, http, admin, temporary)
            farm.run(WARM_UP, 0)
            before = farm.rest(farm.settled())
            started = time.monotonic()
            farm.run(given.jobs, given.restarts)
            after = farm.rest(before.keys, before.kept)
            seconds = time.monotonic() - started
    console.print(table(before, after, farm.restarted, seconds))
    missed = faults(before, after, WARM_UP + given.jobs, farm.killed)
    for fault in missed:
        console.print(f"NOT so: {fault}")
    if missed:
        console.print(f"keys before: {before.keys}\nkeys after: {after.keys}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
