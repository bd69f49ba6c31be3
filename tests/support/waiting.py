"""Wait for a condition with a deadline; a failure says what was waited for and what was there instead."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Two cores shared with servers and workers: slow is not wrong. A test that measures speed says so itself.
TIMEOUT_SECONDS = 20.0
LOOK_EVERY_SECONDS = 0.02


def eventually(
    predicate: Callable[[], T],
    *,
    timeout: float = TIMEOUT_SECONDS,
    describe: str | Callable[[], object] = "",
    every: float = LOOK_EVERY_SECONDS,
) -> T:
    """Return the first truthy answer of `predicate`; AssertionError after `timeout` seconds.

    `describe` is a sentence, or a function that is called at failure and tells the state of things. An
    AssertionError of the predicate counts as "not yet", and its text is shown at the end.
    """
    deadline = time.monotonic() + timeout
    last: object = None
    while True:
        try:
            last = answer = predicate()
        except AssertionError as error:
            last = error
        else:
            if answer:
                return answer
        if time.monotonic() > deadline:
            told = (
                describe() if callable(describe) else describe or getattr(predicate, "__name__", "condition")
            )
            raise AssertionError(f"not within {timeout:g} s: {told}; last answer: {last!r}")
        time.sleep(every)


def always(predicate: Callable[[], object], *, during: float, describe: str = "") -> None:
    """Check that `predicate` holds at every look for `during` seconds."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        answer = predicate()
        if not answer:
            raise AssertionError(f"did not hold: {describe or predicate!r}; answer: {answer!r}")
        time.sleep(LOOK_EVERY_SECONDS)
