"""Behind a flood: team B's ten jobs while 10,000 of team A's wait, and team B's ten alone.

Each job's render takes 50 ms in a renderer's child; one worker of 8 threads; no limits, equal weights. The
figure is the time from B's commit to the end of its last job. A has work left after every turn.

- oncommit, behind 10,000: A's jobs are in Redis before B commits, and A uses every thread.
- alone: the same worker, A is paused.
"""

import json
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import Ground, World, until
from benchmarks.bench.measures.whole_job import worker

FLOOD, TEN, RENDER_MS, THREADS = 10_000, 10, 50, 8
LIMIT_SECONDS = 60.0
ENDED = "SELECT count(*) FROM jobs WHERE id = ANY(%s) AND status = 'succeeded'"
RUNNING = "SELECT count(*) FROM jobs WHERE team = 'a' AND status = 'processing'"
LIMIT = "SELECT set_lane('a', %s, 'bench', 'a turn')"
SIMULATED = {"sleep_ms": RENDER_MS}


class Stage:
    """One world for both, since who is alone has to be so on the same worker."""

    def __init__(self, world: World, flood: int) -> None:
        self._world = world
        for team in ("a", "b"):
            world.team(team)
        world.relay()
        self._pause(paused=True)
        for at in range(0, flood, 1_000):
            world.accept("a", min(1_000, flood - at), simulate=SIMULATED)
        until(lambda: world.in_redis() >= flood, LIMIT_SECONDS)
        worker(world, "actors:setup", THREADS).wait_ready(timeout=60)

    def alone(self) -> Mapping[str, float]:
        """Let B run alone."""
        return self._ten()

    def behind(self) -> Mapping[str, float]:
        """Let B come while A uses every thread."""
        self._pause(paused=False)
        until(lambda: self._world.number(RUNNING) >= THREADS, LIMIT_SECONDS)
        try:
            return self._ten()
        finally:
            self._pause(paused=True)
            until(lambda: not self._world.number(RUNNING), LIMIT_SECONDS)

    def _pause(self, *, paused: bool) -> None:
        self._world.admin.execute(LIMIT, [json.dumps({"paused": paused})])

    def _ten(self) -> Mapping[str, float]:
        jobs = self._world.accept("b", TEN, simulate=SIMULATED)
        began = time.perf_counter()
        until(lambda: self._world.number(ENDED, [jobs]) == TEN, LIMIT_SECONDS, every=0.002)
        return {"last": 1000 * (time.perf_counter() - began)}


class Contest:
    """Both contestants on one stage: the first that comes in builds it."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._stage: Stage | None = None

    @contextmanager
    def behind(self) -> Generator[Turn]:
        """B behind the flood."""
        with self._ground.world() as world:
            self._stage = Stage(world, self._ground.scaled(FLOOD, 500))
            self._stage.alone()  # the first renders find cold children
            yield self._stage.behind

    @contextmanager
    def alone(self) -> Generator[Turn]:
        """B alone."""
        assert self._stage is not None, "there is no stage"
        yield self._stage.alone


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    found = Contest(ground)
    return {"oncommit, behind 10,000": found.behind, "alone": found.alone}


MEASURES = [
    Measure(
        "behind",
        f"Team B's {TEN} jobs of {RENDER_MS} ms behind team A's {FLOOD:,}: the end of the last",
        [Figure("last", "ms", less=True)],
        [Floor("last", "oncommit, behind 10,000", "alone", 2)],
        _entrances,
    )
]
