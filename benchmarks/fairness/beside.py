"""The same two loads for oncommit and for stock Dramatiq with ConcurrentRateLimiter, in the same run.

Throttled: team A has work for 40 s at its limit of one render at once, 4 threads serve, and a single job
of team B comes every few seconds. Flood: 10,000 short jobs of A wait, then B's single job comes.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from benchmarks.fairness.stage import JOB_MS, THREADS, Stage
from support.lane_server import Server

LIMIT = 1
THROTTLED = 40
THROTTLED_MS = 1_000
#: The best that anybody can do: the limit is the bottleneck.
BEST_SECONDS = THROTTLED * THROTTLED_MS / 1000 / LIMIT
#: Who is not done by then is counted as he is.
PATIENCE_SECONDS = 3 * BEST_SECONDS
SINGLE_EVERY_SECONDS = 3.0
FLOOD = 10_000
FLOOD_PATIENCE_SECONDS = 30.0
#: Waits are read from logs, so looking seldom costs no accuracy, and the watched little CPU.
LOOK_SECONDS = 0.25
#: What stock's actor is told: nothing; to look again within a job's time; or within five.
SHORT = {"min_backoff": THROTTLED_MS // 5, "max_backoff": THROTTLED_MS}
LONGER = {"min_backoff": THROTTLED_MS, "max_backoff": 5 * THROTTLED_MS}
STOCK: Mapping[str, Mapping[str, Any]] = {
    "stock, all defaults": {},
    "stock, backoff 0.2 to 1 s": SHORT,
    "stock, backoff 1 to 5 s": LONGER,
    "stock, backoff 0.2 to 1 s, retries without end": {**SHORT, "max_retries": 1_000_000},
}


@dataclass(frozen=True)
class Outcome:
    """What became of both loads; seconds. `left` of A's jobs had neither run nor died when patience ended."""

    who: str
    seconds: float
    ran: int
    bounced: int
    dead: int
    left: int
    waits: Sequence[float]
    flood_wait: float | None

    @property
    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        late = f"> {FLOOD_PATIENCE_SECONDS:.0f} s"
        flood = late if self.flood_wait is None else f"{self.flood_wait * 1000:,.0f} ms"
        waits = f"{statistics.median(self.waits) * 1000:.0f} / {max(self.waits) * 1000:.0f} ms"
        return (
            self.who, f"{self.ran} of {THROTTLED}", f"{self.seconds:.0f} s", f"{self.bounced:,}",
            str(self.dead), str(self.left), waits, flood,
        )  # fmt: skip


class Party(Protocol):
    """Whoever is given the load."""

    def accept(self, team: str, count: int) -> list[str]:
        """Take jobs of a team."""
        ...

    def log(self) -> list[dict[str, Any]]:
        """Return the log of starts, ends and bounces."""
        ...

    def spent(self) -> tuple[int, int]:
        """Return (attempts or retries burnt, dead letters) of team A."""
        ...


class Ours:
    """oncommit on the stage; its teams are new for each load."""

    def __init__(self, stage: Stage, name: str, ms: int) -> None:
        self._stage = stage
        self._ms = ms
        self._teams = {"a": stage.team(f"{name}-a", max_running=LIMIT), "b": stage.team(f"{name}-b")}

    def accept(self, team: str, count: int) -> list[str]:
        """Commit jobs, and wait until nearly all of many are in Redis, where stock's begin."""
        before = self._stage.in_redis()
        jobs = [str(job) for job in self._stage.accept(self._teams[team], count, ms=self._ms)]
        if count > 1:
            self._stage.until(lambda: self._stage.in_redis() >= before + 0.95 * count - 10, 60)
        return jobs

    def log(self) -> list[dict[str, Any]]:
        """Return the render log of both teams, by their short names."""
        short = {name: team for team, name in self._teams.items()}
        return [
            {**line, "team": short[line["team"]]} for line in self._stage.lines() if line["team"] in short
        ]

    def spent(self) -> tuple[int, int]:
        """Return what the database counted: attempts beyond the first, further dispatches, dead jobs."""
        row = self._stage.world.admin.execute(
            "SELECT coalesce(sum(greatest(attempt, dispatch_no) - 1) FILTER (WHERE attempt > 0), 0),"
            "       count(*) FILTER (WHERE status = 'dead') FROM jobs WHERE team = %s",
            [self._teams["a"]],
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def close(self) -> None:
        """End what is waiting."""
        self._stage.close_teams(*self._teams.values())


class Stock:
    """Stock Dramatiq: a worker process of the same number of threads, and a Redis of its own."""

    def __init__(self, server: Server, log: Path) -> None:
        self._broker = RedisBroker(url=server.url)
        self._broker.declare_queue("default")
        self._log = log
        self._lines: list[dict[str, Any]] = []
        self._read = 0

    def accept(self, team: str, count: int) -> list[str]:
        """Enqueue messages."""
        jobs = [str(uuid4()) for _ in range(count)]
        for job in jobs:
            self._broker.enqueue(Message("default", "preview", (team, job), {}, {}))
        return jobs

    def log(self) -> list[dict[str, Any]]:
        """Return what the actor wrote; only what is new is read, since bounces are many."""
        with self._log.open("rb") as file:  # the worker made it before it was ready
            file.seek(self._read)
            *whole, _ = file.read().split(b"\n")
        self._read += sum(len(line) + 1 for line in whole)
        self._lines += [json.loads(line) for line in whole]
        return self._lines

    def spent(self) -> tuple[int, int]:
        """Return the bounces of team A, and the dead letters that Redis keeps."""
        bounced = sum(line["phase"] == "bounce" and line["team"] == "a" for line in self.log())
        return bounced, int(self._broker.client.zcard("dramatiq:default.XQ"))


def compare(stage: Stage, say: Callable[[str], None]) -> list[Outcome]:
    """Give both loads to oncommit and to each variant of stock, one after the other."""
    found: list[Outcome] = []
    say("oncommit")
    ours = Ours(stage, "throttled", THROTTLED_MS)
    throttled = _throttled(ours)
    ours.close()
    ours = Ours(stage, "flood", JOB_MS)
    found.append(Outcome("oncommit", *throttled, _flood(ours)))
    ours.close()
    say(" | ".join(found[-1].row))
    for who, options in STOCK.items():
        say(who)
        with _stock(stage, options, THROTTLED_MS) as party:
            throttled = _throttled(party)
        with _stock(stage, options, JOB_MS) as party:
            found.append(Outcome(who, *throttled, _flood(party)))
        say(" | ".join(found[-1].row))
    return found


@contextmanager
def _stock(stage: Stage, options: Mapping[str, Any], ms: int) -> Iterator[Stock]:
    with tempfile.TemporaryDirectory(prefix="oncommit-stock-") as folder:
        server, log = Server(Path(folder)), Path(folder, "log.jsonl")
        server.start()
        env = {
            "STOCK_URL": server.url,
            "STOCK_LIMIT": str(LIMIT),
            "STOCK_JOB_MS": str(ms),
            "STOCK_OPTIONS": json.dumps(options),
            "STOCK_LOG": str(log),
        }
        argv = [sys.executable, "-m", "dramatiq", "benchmarks.fairness.stock", "-p", "1", "-t", str(THREADS)]
        worker = stage.world.processes.start("stock", argv, env)
        try:
            worker.wait_log("Worker process is ready")
            yield Stock(server, log)
        finally:
            worker.kill()
            server.stop()


def _starts(party: Party, jobs: Sequence[str]) -> dict[str, float]:
    wanted = set(jobs)
    return {
        line["job"]: line["time"]
        for line in party.log()
        if line["phase"] == "start" and line["job"] in wanted
    }


def _throttled(party: Party) -> tuple[float, int, int, int, int, list[float]]:
    """Return seconds, ran, bounced, dead, left, and the waits of B's singles."""
    jobs, singles = party.accept("a", THROTTLED), dict[str, float]()
    began, ended, next_single = time.monotonic(), 0.0, SINGLE_EVERY_SECONDS
    while (ended := time.monotonic() - began) < PATIENCE_SECONDS:
        if next_single < min(ended, BEST_SECONDS):
            [job] = party.accept("b", 1)
            singles[job] = time.time()
            next_single += SINGLE_EVERY_SECONDS
        if len(_starts(party, jobs)) + party.spent()[1] >= THROTTLED:
            break
        time.sleep(LOOK_SECONDS)
    ran, (bounced, dead) = len(_starts(party, jobs)), party.spent()
    began_at = _starts(party, list(singles))
    waits = [began_at.get(job, time.time()) - accepted for job, accepted in singles.items()]
    return ended, ran, bounced, dead, THROTTLED - ran - dead, waits


def _flood(party: Party) -> float | None:
    """Return how long B's single job waits behind A's many; None when patience ends."""
    many = party.accept("a", FLOOD)
    while not _starts(party, many):
        time.sleep(LOOK_SECONDS)
    [job] = party.accept("b", 1)
    accepted = time.time()
    while not (found := _starts(party, [job])):
        if time.time() - accepted > FLOOD_PATIENCE_SECONDS:
            return None
        time.sleep(LOOK_SECONDS)
    return found[job] - accepted
