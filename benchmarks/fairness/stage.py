"""The stage: real servers, a relay, one worker process of four threads, and teams' work committed by SQL."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from benchmarks.bounds.stage import ACCEPT, DIGEST, DOCUMENT, PRODUCTION
from tests.chaos.world import World

THREADS = 4
#: What one render takes, ms: long beside what surrounds it, short enough for hundreds of starts in 10 s.
JOB_MS = 200
LOOK_SECONDS = 0.02


class Stage:
    """One world, and teams that come and go in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        path = Path(world.processes.blobs, "00", "0" * 64)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"fairness")

    def start(self) -> None:
        """Start a relay and a worker with the settings of production."""
        self.world.start(portals=0, relays=1, workers=1, threads=THREADS, direct=True, **PRODUCTION)

    def team(self, team: str, **limits: Any) -> str:
        """Make a team with these limits."""
        self.world.admin.execute("SELECT create_team(%s, 'fairness')", [team])
        self.world.admin.execute(DOCUMENT, [team, DIGEST])
        if limits:
            self.limit(team, **limits)
        return team

    def limit(self, team: str, **limits: Any) -> None:
        """Change a team's limits."""
        self.world.admin.execute("SELECT set_lane(%s, %s, 'fairness', 'measure')", [team, json.dumps(limits)])

    def accept(
        self, team: str, count: int = 1, *, priorities: Sequence[int] = (5,), ms: int = JOB_MS
    ) -> list[UUID]:
        """Commit jobs of `ms` each in one transaction; priorities go round."""
        ids = [uuid4() for _ in range(count)]
        simulate = json.dumps({"sleep_ms": ms}) if ms else None
        rows = (
            ["page"] * count, [DIGEST] * count, [None] * count,
            [priorities[n % len(priorities)] for n in range(count)], [5] * count, [simulate] * count,
        )  # fmt: skip
        batch = uuid4() if count > 1 else None
        row = self.world.admin.execute(ACCEPT, [team, str(uuid4()), b"f" * 32, batch, ids, *rows]).fetchone()
        assert row == ("new",), row
        return ids

    def close_teams(self, *teams: str) -> None:
        """End what these teams have waiting, so that the next measurement begins with free threads."""
        for team in teams:
            self.limit(team, paused=True)
        self.until(lambda: not self.running(teams), 30)

    def running(self, teams: Sequence[str]) -> int:
        """Return how many jobs of these teams are claimed."""
        row = self.world.admin.execute(
            "SELECT count(*) FROM jobs WHERE team = ANY(%s) AND status = 'processing'", [list(teams)]
        ).fetchone()
        assert row is not None
        return int(row[0])

    def in_redis(self) -> int:
        """Return how many messages Redis holds."""
        return int(self.world.valkey.client.hlen("oncommit:previews:messages"))

    def lines(self) -> list[dict[str, Any]]:
        """Return the render log."""
        return self.world.processes.renders()

    def started(self, jobs: Sequence[UUID]) -> dict[str, float]:
        """Return when each of these jobs started first, by the render log; some may not have."""
        wanted, found = {str(job) for job in jobs}, dict[str, float]()
        for line in self.lines():
            if line["phase"] == "start" and line["job"] in wanted:
                found.setdefault(line["job"], line["time"])
        return found

    def started_all(self, jobs: Sequence[UUID], limit: float) -> dict[str, float]:
        """Wait until all of these jobs have started."""
        self.until(lambda: len(self.started(jobs)) == len(jobs), limit)
        return self.started(jobs)

    def pass_time(self, seconds: float) -> None:
        """Let them work: the length of a measurement."""
        self.world.pass_time(seconds)

    def until(self, condition: Callable[[], Any], limit: float) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: longer than `limit` seconds.

        """
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {limit:g} s")
            time.sleep(LOOK_SECONDS)
