"""The table of bounds: who decides, a run that failed is never left out, each bound has its measure."""

import pytest

from benchmarks.bounds.bounds import BOUNDS
from benchmarks.bounds.measures import MEASURES
from benchmarks.bounds.report import Found, markdown

#: A measure with one bound, of 5 s.
NAME = "takeover"
[BOUND] = BOUNDS[NAME]


def found(*values: float, times: int = 3) -> Found:
    result = Found(times)
    for value in values:
        result.add(NAME, {BOUND.key: value})
    return result


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.0, 2.0, 99.0), "held"),
        ((1.0, 5.0, 99.0), "held"),
        ((1.0, 5.001, 99.0), "MISSED"),
        ((1.0, 1.0), "FAILED 1 of 3"),
        ((), "FAILED 3 of 3"),
    ],
    ids=["an outlier", "at the bound", "over the bound", "a run failed", "all failed"],
)
def test_a_bound_holds_when_every_run_ended_and_their_median_is_within(
    values: tuple[float, ...], verdict: str
) -> None:
    result = found(*values)
    assert result.verdict(NAME, BOUND) == verdict
    assert result.holds([NAME]) == (verdict == "held")
    assert verdict in markdown(result, [NAME], "on what")


@pytest.mark.parametrize("key", ["elsewhere", "next"])
def test_what_is_promised_of_each_time_is_judged_by_the_slowest_run(key: str) -> None:
    [bound] = [bound for bound in BOUNDS["worker-killed"] if bound.key == key]
    assert (bound.limit, bound.most) == ("≤ 30 s, each time", 30)
    for slowest, verdict in ((30.0, "held"), (30.001, "MISSED")):
        result = Found(3)
        for value in (1.0, slowest, 2.0):
            result.add("worker-killed", {"elsewhere": 1.0, "next": 1.0, key: value})
        assert result.verdict("worker-killed", bound) == verdict
        assert result.holds(["worker-killed"]) == (verdict == "held")


def test_a_failure_is_told_with_its_reason() -> None:
    result = found(1.0, 1.0)
    result.fail(NAME, "run 3: TimeoutError: not within 60 s")
    assert "- takeover: run 3: TimeoutError: not within 60 s" in markdown(result, [NAME], "on what")


def test_a_measure_that_forgets_a_bound_or_knows_another_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="takeover measured"):
        Found(1).add(NAME, {})
    with pytest.raises(ValueError, match="takeover measured"):
        Found(1).add(NAME, {BOUND.key: 1.0, "another": 1.0})


def test_each_bound_has_a_measure_and_each_measure_its_bounds() -> None:
    assert MEASURES.keys() == BOUNDS.keys()
    assert all(bounds for bounds in BOUNDS.values())
