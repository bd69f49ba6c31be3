"""A scenario: one fault, or a few, under a little traffic; then everything is settled and judged."""

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from support.waiting import eventually

from .faults import FAULTS
from .history import Entry
from .schedule import conclude, endure
from .traffic import Traffic
from .world import World

#: Longest between two ends of jobs, sooner than in a random run; dead consumers' messages take 10 s.
SETTLE_SECONDS = 60.0


class Scenario:
    """One scenario in a world that others share."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.history = world.new_history()
        self.traffic = Traffic(world, self.history, rng.randrange(2**32), clients=2, pace_seconds=0.25)
        self._concluded = False

    def begin(self) -> None:
        """Let the clients begin, and wait for the first answers: the world is well before the fault."""
        self.traffic.start()
        self.answered(3)

    def answered(self, more: int, timeout: float = 30.0) -> None:
        """Wait until so many more requests were answered 202."""

        def count() -> int:
            return sum(entry["status"] == 202 for entry in self.history.of("answer"))

        wanted = count() + more
        eventually(lambda: count() >= wanted, timeout=timeout, describe=f"{more} more answers")

    def asked(self, more: int) -> None:
        """Wait until so many more requests were sent."""
        wanted = self.history.count("request") + more
        eventually(lambda: self.history.count("request") >= wanted, describe=f"{more} more requests")

    def rendered(self, more: int, timeout: float = 30.0) -> None:
        """Wait until so many more renders have started."""
        wanted = len(self.world.processes.renders()) + more
        eventually(
            lambda: len(self.world.processes.renders()) >= wanted, timeout=timeout, describe="more renders"
        )

    def suffer(self, *names: str, seconds: float | None = None) -> None:
        """Inject these faults, let them last, and heal them."""
        faults = [FAULTS[name](self.world, self.rng) for name in names]
        for fault in faults:
            if seconds is not None:
                fault.hold_seconds = (seconds, seconds)  # type: ignore[misc] -- of this one only
        endure(self.world, self.rng, faults)

    @contextmanager
    def during(self, name: str) -> Generator[None]:
        """Inject a fault for as long as the block takes."""
        fault = FAULTS[name](self.world, self.rng)
        fault.tell()
        try:
            fault.inject()
            yield
        finally:
            fault.heal()
            self.history.add("heal", fault=name)

    def post(self, team: str, *jobs: dict[str, Any], batch: bool = False, **how: Any) -> None:
        """Post jobs of the test's own; `how`: see `Traffic.post`."""
        self.traffic.post(team, list(jobs), batch=batch, **how)

    def answers(self, key: str) -> list[Entry]:
        """Return every answer to the request with this key."""
        return [entry for entry in self.history.of("answer") if entry["key"] == key]

    def expect_interruptions(self) -> None:
        """From now on renders may end early, though no fault of the list is injected."""
        self.history.add("inject", fault="by hand", interrupts=True, touches=[])

    def end(self, settle_seconds: float = SETTLE_SECONDS) -> float:
        """Stop the traffic, settle, judge; return the seconds that took.

        Raises:
            AssertionError: an invariant was violated; says which, and where the history is.

        """
        if self._concluded:
            return 0.0
        self._concluded = True
        began = time.monotonic()
        outcome = conclude(self.world, self.traffic, settle_seconds=settle_seconds)
        assert not outcome.violations, "\n".join([*outcome.violations, f"history: {self.history.file}"])
        return time.monotonic() - began
