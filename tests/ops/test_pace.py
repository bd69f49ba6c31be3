"""The pace of a replay, by a clock of the test's own: no window holds more than the rate and one slice."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.replaying import Pace

#: Of a slice: how long its transaction takes, seconds, and which part of it was still dead.
SLICES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.3, 1.0, 30.0]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=2,
    max_size=40,
)


class Clock:
    """A clock that only sleep and work move; a sleep may end too early, as a real one may."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds if seconds < 0.001 else seconds * 0.9


def replayed(rate: float, slices: list[tuple[float, float]]) -> tuple[Pace, list[tuple[float, int]]]:
    """Return (when, how many jobs) of each slice."""
    clock = Clock()
    pace = Pace(rate, clock=clock, sleep=clock.sleep)
    found: list[tuple[float, int]] = []
    for seconds, part in slices:
        pace.wait()
        jobs = int(pace.size * part)
        found.append((clock.now, jobs))
        clock.now += seconds
        pace.spent(jobs)
    return pace, found


@given(st.sampled_from([0.1, 1.0, 5.0, 50.0, 499.5, 2_000.0, 10_000.0]), SLICES)
def test_no_window_exceeds_the_rate_and_one_slice(rate: float, slices: list[tuple[float, float]]) -> None:
    pace, found = replayed(rate, slices)
    for first, (begin, _) in enumerate(found):
        total = 0
        for end, jobs in found[first:]:
            total += jobs
            assert total <= rate * (end - begin) * (1 + 1e-9) + pace.size + 1e-6


@pytest.mark.parametrize("rate", [0.5, 5.0, 500.0, 2_000.0])
def test_the_rate_is_reached_when_the_transactions_are_short(rate: float) -> None:
    pace, found = replayed(rate, [(0.0001, 1.0)] * 20)
    assert all(
        after - before == pytest.approx(pace.size / rate, rel=0.01)
        for (before, _), (after, _) in pairwise(found)
    )


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock=clock, sleep=clock.sleep)
    for _ in range(100):
        pace.wait()
        pace.spent(pace.size)
    assert clock.now == 100.0
