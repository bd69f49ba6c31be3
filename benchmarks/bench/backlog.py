"""One turn of a worker on a backlog: fill it up, start the worker, count what it ends within some seconds."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.bench.contest import Turn
from benchmarks.bench.ground import Ground, until
from support.processes import Running

BACKLOG = 20_000
SECONDS = 2.0
#: Ended jobs after which a worker is warm: its pools and prepared statements are there.
WARM = 200
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One contestant's hands.

    Attributes:
        fill: adds so many jobs.
        start: starts the worker process.
        left: how many jobs have not ended.

    """

    fill: Callable[[int], None]
    start: Callable[[], Running]
    left: Callable[[], float]

    def turn(self, ground: Ground) -> Turn:
        """Return the turn: jobs ended a second, out of a backlog of 20,000."""

        def turn() -> Mapping[str, float]:
            backlog = ground.scaled(BACKLOG, 5_000)
            if (missing := backlog - round(self.left())) > 0:
                self.fill(missing)
            begun = self.left()
            running = self.start()
            try:
                until(lambda: self.left() <= begun - min(WARM, backlog / 10), START_SECONDS)
                before, at = self.left(), time.perf_counter()
                time.sleep(max(0.5, SECONDS * ground.size))
                after, took = self.left(), time.perf_counter() - at
            finally:
                running.stop()
            if after <= 0:
                raise RuntimeError("the backlog was empty before the seconds were over")
            return {"rate": (before - after) / took}

        return turn
