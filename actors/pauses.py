"""Pauses between the tries of a statement that has to be written: an end of a claim, or a claim."""

from typing import Final

#: A statement that the server refuses is refused again: a fault to repair, so ask seldom. Seconds.
REFUSED_SECONDS: Final = 5.0
#: The database is away, or others were in the way: at first at once, nearly, and then each second.
FIRST_SECONDS, LONGEST_SECONDS = 0.05, 1.0


class Pauses:
    """The pauses of one statement, each twice the last."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def take(self, *, refused: bool = False) -> float:
        """Return how long to wait now, seconds; `refused`: the server understood, and would not."""
        pause = REFUSED_SECONDS if refused else self._next
        self._next = min(pause * 2, LONGEST_SECONDS)
        return pause
