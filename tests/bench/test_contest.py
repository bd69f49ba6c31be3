"""The contest: turns alternate, ratios pair turns of one round, and nobody's failure is left out."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import pytest

from benchmarks.bench import report
from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Outcome, Turn, percentile, run

SILENT: Callable[[str], None] = lambda _: None  # noqa: E731 -- a name for what says nothing


def measure(*floors: Floor, less: bool = False) -> Measure:
    return Measure("m", "A measure", [Figure("rate", "jobs/s", less)], floors, dict)


def contestant(name: str, values: list[float], log: list[str], *, fails_at: int | None = None) -> Entrance:
    left = iter(enumerate(values))

    def turn() -> Mapping[str, float]:
        number, value = next(left)
        log.append(name)
        if number == fails_at:
            raise RuntimeError("broken")
        return {"rate": value}

    @contextmanager
    def enter() -> Generator[Turn]:
        log.append(f"{name} in")
        yield turn
        log.append(f"{name} out")

    return enter


def test_each_is_set_up_once_and_they_take_turns_in_changing_order() -> None:
    log: list[str] = []
    run(measure(), {n: contestant(n, [1, 1, 1], log) for n in ("a", "b")}, 3, SILENT)
    assert log == ["a in", "b in", "a", "b", "b", "a", "a", "b", "b out", "a out"]


def test_a_ratio_pairs_the_turns_of_one_round_so_that_a_drift_of_both_is_none() -> None:
    floor, log = Floor("rate", "ours", "other", 1.9), list[str]()
    ours, other = [200.0, 20.0, 2.0], [100.0, 10.0, 1.0]
    entrances = {"ours": contestant("ours", ours, log), "other": contestant("other", other, log)}
    outcome = run(measure(floor), entrances, 3, SILENT)
    assert outcome.ratios(floor) == [2.0, 2.0, 2.0]
    assert outcome.verdict(floor) == "held"
    assert outcome.good()


@pytest.mark.parametrize(
    ("less", "bound", "verdict"),
    [(False, 2.0, "held"), (False, 2.01, "MISSED"), (True, 2.0, "held"), (True, 1.99, "MISSED")],
)
def test_a_floor_is_held_up_to_and_including_its_bound(less: bool, bound: float, verdict: str) -> None:
    floor, log = Floor("rate", "ours", "other", bound), list[str]()
    entrances = {"ours": contestant("ours", [2, 2], log), "other": contestant("other", [1, 1], log)}
    outcome = run(measure(floor, less=less), entrances, 2, SILENT)
    assert outcome.verdict(floor) == verdict
    assert outcome.good() is (verdict == "held")


def test_an_absolute_floor_is_held_against_our_own_figure() -> None:
    floor, log = Floor("rate", "ours", "", 150, absolute=True), list[str]()
    outcome = run(measure(floor, less=True), {"ours": contestant("ours", [140, 151, 120], log)}, 3, SILENT)
    assert outcome.verdict(floor) == "held"
    [row] = report.floors(outcome)
    assert row == ("ours", "itself", "140 jobs/s", "120 .. 151", "≤ 150 jobs/s", "held")


@pytest.mark.parametrize("broken", ["ours", "other"])
def test_one_that_fails_is_told_and_the_others_go_on(broken: str) -> None:
    shown = Floor("rate", "ours", "other", None)
    log: list[str] = []
    entrances = {
        name: contestant(name, [1, 1, 1], log, fails_at=1 if name == broken else None)
        for name in ("ours", "other")
    }
    outcome = run(measure(shown), entrances, 3, SILENT)
    assert outcome.failures == {broken: "RuntimeError: broken"}
    assert outcome.verdict(shown) == "FAILED"
    assert not outcome.good()
    assert log.count(broken) == 2
    assert log[-2:] == ["other out", "ours out"]
    rows = list(report.figures(outcome))
    assert len(rows) == 2


def test_one_that_cannot_come_in_has_a_row_and_a_reason() -> None:
    @contextmanager
    def absent() -> Generator[Turn]:
        raise FileNotFoundError("no such server")
        yield dict  # the form of a generator

    log: list[str] = []
    outcome = run(measure(), {"ours": contestant("ours", [1, 1], log), "other": absent}, 2, SILENT)
    assert outcome.failures == {"other": "FileNotFoundError: no such server"}
    assert ("other", "FAILED", "jobs/s", "") in list(report.figures(outcome))


def test_the_page_has_every_figure_floor_failure_note_and_plot() -> None:
    outcome = Outcome(measure(Floor("rate", "ours", "other", 2)), 2)
    outcome.values = {"ours": {"rate": [3000, 3002]}, "other": {"rate": [1000, 1001]}}
    outcome.failures = {"third": "OSError: gone"}
    conditions = report.Conditions(["PostgreSQL 18"], 1, [0.5, 2.0], "2 rounds", {"m": "How it is done."})
    text = report.markdown([outcome], conditions, {"m": "plots/m.png"})
    for line in (
        "## A measure",
        "| ours | 3,001 | jobs/s | 3,000 .. 3,002 |",
        "| third | FAILED | jobs/s |  |",
        "| ours | other | 3 x | 3 .. 3 | ≥ 2 x | held |",
        "- third FAILED: OSError: gone",
        "How it is done.",
        "![A measure](plots/m.png)",
    ):
        assert line in text.splitlines()
    assert "PostgreSQL 18" in text
    assert "load average 0.5 when it began, then up to 2.0" in text


def test_percentiles_lie_between_the_ranks() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 75) == 1.75
    assert percentile([5.0], 99) == 5.0
    assert percentile([float(n) for n in range(101)], 99) == 99.0
    assert percentile([1.0, 9.0], 100) == 9.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
