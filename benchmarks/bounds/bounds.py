"""What has to hold, as a table: every promised number, its unit, and the measure that knows it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bound:
    """One promised number.

    Attributes:
        key: as its measure returns it.
        what: what is measured.
        most: the largest value that is allowed.
        unit: of `most` and of every value.
        judged: the value that must be within it: the runs' median, or the slowest run's, for what was
            promised of each time.

    """

    key: str
    what: str
    most: float
    unit: Literal["s", "ms", "MB", ""]
    judged: Literal["median", "slowest"] = "median"

    @property
    def limit(self) -> str:
        """Return the allowed value as it is printed."""
        limit = f"≤ {self.most:g} {self.unit}".strip()
        return f"{limit}, each time" if self.judged == "slowest" else limit

    def holds(self, values: Sequence[float]) -> bool:
        """Tell whether what all runs measured is within it."""
        return (max(values) if self.judged == "slowest" else statistics.median(values)) <= self.most


#: By the measure that finds them.
BOUNDS: dict[str, Sequence[Bound]] = {
    "loss": [
        Bound("lost", "FLUSHALL on an idle system: until its messages are back", 1, "s"),
        Bound("partly-lost", "a stale copy of Redis put back, idle: until the rest is back", 1, "s"),
    ],
    "hundred-thousand": [
        Bound("back", "100,000 living intents back in Redis after FLUSHALL", 10, "s"),
        Bound("flowing", "slowest single job meanwhile, commit to start", 10, "s"),
        Bound("memory", "relay memory after that", 120, "MB"),
    ],
    "redis-down": [
        Bound("unconfirmed", "WAL not confirmed while 1 GB is written without Redis", 64, "MB"),
        Bound("accepting", "accepting a job meanwhile", 1, "s"),
        Bound("shrunk", "retained WAL is back under 16 MB, checkpoints passing", 60, "s"),
        Bound("first", "first job starts after Redis is back", 2, "s"),
        Bound("stopped", "PostgreSQL stops in order while Redis is down", 10, "s"),
    ],
    "frozen-wal": [
        Bound("unconfirmed", "WAL not confirmed while 1 GB is written and Redis is frozen", 64, "MB"),
    ],
    "paused-wal": [
        Bound("unconfirmed", "WAL not confirmed while 1 GB is written and dispatch is paused", 64, "MB"),
    ],
    "redis-frozen": [
        Bound("taken-for-dead", "jobs taken from a living worker while Redis froze for 30 s", 0, ""),
        Bound("attempts", "attempts that it cost", 0, ""),
    ],
    "postgres-away": [
        Bound("taken-for-dead", "jobs taken from a living worker while PostgreSQL was away for 30 s", 0, ""),
        Bound("attempts", "attempts that it cost", 0, ""),
    ],
    "idle-wal": [
        Bound("shrunk", "idle; 512 MB written elsewhere: retained WAL is under 16 MB again", 60, "s"),
    ],
    "slot-lost": [
        Bound("dropped", "the slot is dropped: until what is committed then is in Redis", 5, "s"),
    ],
    "takeover": [Bound("took", "the relay is killed: until the second one publishes", 5, "s")],
    "polling": [
        Bound("slowest", "no stream to be had: commit to Redis, slowest of 5", 2, "s"),
        Bound("refused", "the stream's password is wrong: commit to Redis, slowest in 12 s", 2, "s"),
        Bound("silent", "the stream's address does not answer: commit to Redis, slowest in 12 s", 2, "s"),
    ],
    "poison": [
        Bound("rest", "rows behind a poison row are in Redis", 1, "s"),
        Bound("away", "the poison row is put away", 5, "s"),
    ],
    "million": [
        Bound("published", "1,000,000 intents of one transaction are in Redis, read with wal2json", 600, "s"),
        Bound("memory", "relay memory for that", 150, "MB"),
        Bound("later", "job committed after it starts, after its last row was published", 5, "s"),
        Bound("restarts", "times that the stream began anew, wal_sender_timeout = 5 s", 0, ""),
    ],
    "million-pgoutput": [
        Bound("published", "the same, read with pgoutput", 600, "s"),
        Bound("memory", "relay memory for that", 150, "MB"),
        Bound("later", "job committed after it starts, after its last row was published", 5, "s"),
        Bound("restarts", "times that the stream began anew, wal_sender_timeout = 5 s", 0, ""),
    ],
    "worker-killed": [
        Bound(
            "elsewhere",
            "a killed worker's job starts elsewhere, idle system, max_running 1",
            30,
            "s",
            judged="slowest",
        ),
        Bound("next", "the team's next job has the killed one's slot", 30, "s", judged="slowest"),
    ],
    "worker-stopped": [
        Bound("elsewhere", "a stopped worker's jobs start elsewhere, after a clean SIGTERM", 5, "s"),
        Bound("attempts", "attempts that it cost", 0, ""),
    ],
    "idle-latency": [
        Bound("claim", "commit to claim, idle, median of 100", 10, "ms"),
        Bound("start", "commit to render start, idle, median of 100", 30, "ms"),
    ],
}
