"""What a job costs: CPU of each process, WAL, disk and memory, on the embedded stack; docs/scale.md uses it.

`python -m benchmarks.cost_per_job [--jobs 3000]`: jobs by single requests and by batches of 500, each with
one document that was put before and the mock renderer; then a backlog that waits, for its size, and
intents without jobs, for the relay's speed. CPU is user + system time of all processes of a kind, less what
they use in the same time when idle. Exit 1 unless every job succeeded.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psutil
import psycopg
import redis
from rich.console import Console
from rich.table import Table

from db import outbox
from ops.stack import Stack, StackPlan

CLIENTS, BATCH, THREADS, WRITERS = 8, 500, 4, 4
WARM_UP = 200
IDLE_SECONDS = 10.0
MESSAGES = "oncommit:previews:messages"

LEFT: LiteralString = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
SUCCEEDED: LiteralString = "SELECT count(*) = %s FROM jobs WHERE status = 'succeeded'"
WAL: LiteralString = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
TABLES: LiteralString = (
    "SELECT sum(pg_total_relation_size(c)) FROM unnest(ARRAY['jobs','job_events','requests']::regclass[]) c"
)
INTENTS: LiteralString = "SELECT pg_total_relation_size('outbox')"
PAUSE: LiteralString = "SELECT pause_lane('*', %s, 'benchmark', 'cost per job')"
CHECKPOINT: LiteralString = "CHECKPOINT"

Spent = Counter[str]  # seconds of CPU by kind of process


class Farm:
    """The running stack, and what this script asks of it."""

    def __init__(self, stack: Stack, http: httpx.Client, admin: psycopg.Connection[Any]) -> None:
        self.stack, self.http, self.admin = stack, http, admin
        self.redis = redis.Redis.from_url(stack.redis_url)
        self.sent = 0
        put = http.put("/v1/documents", content=b"# Cost\n", headers={"Content-Type": "text/markdown"})
        self.job = {"document": put.raise_for_status().json()["document"], "kind": "thumbnail"}

    def number(self, query: LiteralString) -> int:
        """Return the one number of a query."""
        row = self.admin.execute(query).fetchone()
        return int(row[0]) if row else 0

    def post(self, path: str, body: Any) -> None:
        """Post under a key of its own."""
        self.sent += 1
        key = {"Idempotency-Key": f"cost-{self.sent}-{time.monotonic_ns()}"}
        self.http.post(path, json=body, headers=key).raise_for_status()

    def singles(self, count: int) -> None:
        """Send jobs one by one, by several clients."""
        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(lambda _: self.post("/v1/jobs", self.job), range(count)))

    def batches(self, count: int) -> None:
        """Send jobs by 500."""
        for first in range(0, count, BATCH):
            self.post("/v1/batches", {"jobs": [self.job] * min(BATCH, count - first)})

    def intents(self, count: int) -> None:
        """Commit intents that are no jobs, one by one."""

        def some(number: int) -> None:
            with psycopg.connect(self.stack.reach.owner, autocommit=True) as conn:
                for _ in range(number):
                    outbox.append(conn, "nobody", ["x" * 40], lane=self.stack.team, queue="previews")

        with ThreadPoolExecutor(WRITERS) as threads:
            list(
                threads.map(
                    some, [count // WRITERS] * (WRITERS - 1) + [count - count // WRITERS * (WRITERS - 1)]
                )
            )

    def finish(self, _count: int = 0) -> None:
        """Wait until nothing is unfinished."""
        while self.number(LEFT):
            time.sleep(0.1)

    def published(self, count: int) -> None:
        """Wait until so many messages are in Redis."""
        while self.redis.hlen(MESSAGES) < count:
            time.sleep(0.05)

    def memory(self) -> int:
        """Return what Redis uses, bytes."""
        found: Any = self.redis.info("memory")
        return int(found["used_memory"])

    def spent(self) -> Spent:
        """Return seconds of CPU by kind, of all processes that live now."""
        found: Spent = Counter()
        for name, pid in self.stack.pids().items():
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                try:
                    times, title = process.cpu_times(), " ".join(process.cmdline())
                except psutil.NoSuchProcess:
                    continue
                found[_kind(name, title)] += times.user + times.system
        return found


def _kind(name: str, title: str) -> str:
    kind = name.partition("-")[0].rstrip("0123456789")
    if kind == "worker":
        return "worker, renderer" if "forkserver" in title else "worker"
    if kind != "postgres":
        return kind
    if "walsender" in title:
        return "PostgreSQL, walsender"
    for role in ("portal", "worker", "relay"):
        if f"oncommit_{role}" in title:
            return f"PostgreSQL for the {role}"
    return "PostgreSQL, the rest"


def idle(farm: Farm) -> dict[str, float]:
    """Return seconds of CPU a second by kind, while nothing is to be done."""
    before = farm.spent()
    time.sleep(IDLE_SECONDS)
    after = farm.spent()
    return {kind: (after[kind] - before[kind]) / IDLE_SECONDS for kind in after}


class Measured:
    """One run: microseconds of CPU a job by kind, bytes a job of WAL and of rows that stay.

    `road`: singles, batches; waiting: batches while dispatch is paused, so accepted and published only;
    intents: rows of the outbox alone, a commit each and as fast as four connections can, while paused.
    """

    def __init__(self, farm: Farm, count: int, road: str, resting: dict[str, float]) -> None:
        self.road = road
        farm.admin.execute(CHECKPOINT)
        before, wal, rows, began = farm.spent(), farm.number(WAL), farm.number(TABLES), time.monotonic()
        send = {"singles": farm.singles, "intents": farm.intents}.get(road, farm.batches)
        send(count)
        (farm.published if road in {"waiting", "intents"} else farm.finish)(count)
        seconds = time.monotonic() - began
        after = farm.spent()
        self.cpu = {
            kind: max(0.0, after[kind] - before[kind] - resting.get(kind, 0.0) * seconds) / count * 1e6
            for kind in sorted(after)
        }
        self.wal = (farm.number(WAL) - wal) / count
        self.rows = (farm.number(TABLES) - rows) / count
        self.per_second = count / seconds


def backlog(farm: Farm, count: int, resting: dict[str, float]) -> tuple[Measured, float, float]:
    """Return what it takes to let jobs wait, and the bytes of Redis and of the outbox for each of them."""
    farm.admin.execute(PAUSE, [True])
    memory, table = farm.memory(), farm.number(INTENTS)
    run = Measured(farm, count, "waiting", resting)
    found = (run, (farm.memory() - memory) / count, (farm.number(INTENTS) - table) / count)
    farm.admin.execute(PAUSE, [False])
    farm.finish(count)
    return found


def intents(farm: Farm, count: int, resting: dict[str, float]) -> Measured:
    """Return what it takes to publish rows of single commits; nothing runs, and nothing is left."""
    farm.admin.execute(PAUSE, [True])
    run = Measured(farm, count, "intents", resting)
    farm.admin.execute("DELETE FROM outbox")
    farm.redis.flushall()
    return run


def tables(
    runs: Sequence[Measured], waiting: Sequence[float], resting: dict[str, float], jobs: int
) -> list[Table]:
    """Return what was measured, for humans."""
    load = f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    cpu = Table(
        "CPU", *(f"{run.road}, µs a job" for run in runs), "idle, ms/s", title=f"{jobs} jobs a column; {load}"
    )
    for kind in runs[0].cpu:
        cpu.add_row(
            kind, *(f"{run.cpu.get(kind, 0):.0f}" for run in runs), f"{resting.get(kind, 0) * 1e3:.1f}"
        )
    cpu.add_row(
        "all together",
        *(f"{sum(run.cpu.values()):.0f}" for run in runs),
        f"{sum(resting.values()) * 1e3:.1f}",
    )
    size = Table("bytes a job", *(run.road for run in runs))
    size.add_row("WAL", *(f"{run.wal:.0f}" for run in runs))
    size.add_row("rows and indexes that stay", *(f"{run.rows:.0f}" for run in runs))
    size.add_row("Redis, while it waits", *[f"{waiting[0]:.0f}"] * len(runs))
    size.add_row("outbox, while it waits", *[f"{waiting[1]:.0f}"] * len(runs))
    size.add_row("(jobs a second here)", *(f"{run.per_second:.0f}" for run in runs))
    return [cpu, size]


def main() -> int:
    """Measure; return 0 when every job succeeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_per_job", description=__doc__)
    parser.add_argument("--jobs", type=int, default=3_000, help="of each run")
    given = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="oncommit-cost-") as folder:
        Path(folder).chmod(0o711)  # the servers' account enters it
        plan = StackPlan(home=Path(folder, "home"), threads=THREADS)
        with (
            Stack(plan, say=lambda text: console.print(text, style="dim")) as stack,
            psycopg.connect(stack.reach.owner, autocommit=True) as admin,
            httpx.Client(
                base_url=stack.portals[0], headers={"Authorization": f"Bearer {stack.token}"},
                timeout=60, trust_env=False,
            ) as http,
        ):  # fmt: skip
            farm = Farm(stack, http, admin)
            farm.singles(WARM_UP)
            farm.finish()
            resting = idle(farm)
            runs = [Measured(farm, given.jobs, road, resting) for road in ("singles", "batches")]
            run, *waiting = backlog(farm, given.jobs, resting)
            runs += [run, intents(farm, given.jobs, resting)]
            whole = admin.execute(SUCCEEDED, [WARM_UP + 3 * given.jobs]).fetchone() == (True,)
    for table in tables(runs, waiting, resting, given.jobs):
        console.print(table)
    if not whole:
        console.print("NOT every job succeeded")
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
