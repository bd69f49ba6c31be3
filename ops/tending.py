"""Restart what dies: one look over a list, with a back-off for each that will not stay up."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ops.processes import StartError

LOOK_EVERY_SECONDS = 0.2
# The first restart is at once. What dies at each start must neither burn the processor nor flood its log.
FIRST_SECONDS = 0.5
LAST_SECONDS = 15.0
# Whoever has run so long is well again.
WELL_SECONDS = 30.0


@dataclass(slots=True)
class Tended:
    """Something that should run.

    Attributes:
        name: for humans.
        running, start: how to ask, and what to do when the answer is no.
        delay_seconds, due, started: its back-off; monotonic seconds.

    """

    name: str
    running: Callable[[], bool]
    start: Callable[[], None]
    delay_seconds: float = 0.0
    due: float = 0.0
    started: float = 0.0


def next_delay(delay_seconds: float, ran_seconds: float) -> float:
    """Return the back-off after one that waited `delay_seconds` and then ran for `ran_seconds`."""
    if ran_seconds >= WELL_SECONDS or delay_seconds == 0.0:
        return FIRST_SECONDS
    return min(delay_seconds * 2, LAST_SECONDS)


class Tending:
    """Looks after a list, in order: what others need comes first."""

    def __init__(self, tended: list[Tended], say: Callable[[str], None]) -> None:
        self._tended = tended
        self._say = say

    def run_once(self, now: float) -> list[str]:
        """Start what has died and may start now; return the names."""
        started: list[str] = []
        for one in self._tended:
            if one.running() or now < one.due:
                continue
            one.delay_seconds = next_delay(one.delay_seconds, now - one.started)
            one.due, one.started = now + one.delay_seconds, now
            self._say(f"{one.name} died: starting it again")
            try:
                one.start()
            except StartError as error:
                self._say(f"{one.name} does not start, next try in {one.delay_seconds:g} s: {error}")
            started.append(one.name)
        return started

    def run(self) -> None:
        """Look again and again, until KeyboardInterrupt."""
        while True:
            self.run_once(time.monotonic())
            time.sleep(LOOK_EVERY_SECONDS)
