"""The bounds, each measured from the render log of real workers: a value, and what it has to be."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.fairness.stage import JOB_MS, THREADS, Stage
from support.starts import least_share, most_at_once, most_beyond, shares, starts

BACKLOG = 10_000
SINGLES = 21
WINDOW_SECONDS = 10.0
#: Over a network of processes a start is written down some ms after its fetch: two may come closer.
JITTER_STARTS = 1.0


@dataclass(frozen=True)
class Row:
    """One measured bound; `unit` follows both numbers."""

    what: str
    value: float
    bound: float | None
    unit: str
    at_least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether the value is on the right side of its bound; what has none is for information."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def small_behind_large(stage: Stage) -> list[Row]:
    """Measure how long a single job waits behind another team's 10,000, and whether a team alone uses all."""
    stage.team("large")
    stage.team("small")
    stage.accept("large", BACKLOG)
    same_moment = _wait(stage)  # the relay is still publishing, in the order of commits
    stage.until(lambda: stage.in_redis() > BACKLOG - 500, 60)
    stage.until(lambda: len(starts(stage.lines(), ["large"])) > 4 * THREADS, 60)
    alone = most_at_once(stage.lines(), ["large"])
    waits: list[float] = []
    for n in range(SINGLES):
        stage.pass_time(JOB_MS / 1000 * (1 + n / SINGLES))  # not in step with the renders
        waits.append(_wait(stage))
    stage.close_teams("large", "small")
    bound = JOB_MS + 100.0
    return [
        Row(f"B's single job behind A's {BACKLOG:,}: accepted to started, median of {SINGLES}",
            statistics.median(waits) * 1000, bound, "ms", note=f"one job's time is {JOB_MS} ms"),
        Row("the slowest of them", max(waits) * 1000, bound, "ms"),
        Row("B's single job committed right after A's transaction", same_moment * 1000, None, "ms",
            note="the relay publishes in the order of commits: this is its speed"),
        Row("A alone: renders at once", alone, THREADS, "", at_least=True),
    ]  # fmt: skip


def _wait(stage: Stage) -> float:
    jobs = stage.accept("small")
    accepted = time.time()
    [started] = stage.started_all(jobs, 30).values()
    return started - accepted


def equal_teams(stage: Stage) -> list[Row]:
    """Measure the least part of an even share that one of three teams gets in any 10 s."""
    teams = [stage.team(f"equal-{n}") for n in range(3)]
    for team, count in zip(teams, (BACKLOG, 2_000, 2_000), strict=True):
        stage.accept(team, count)
    stage.until(lambda: {team for _, team in starts(stage.lines(), teams)} == set(teams), 60)
    since = time.time()
    stage.pass_time(2 * WINDOW_SECONDS)
    until = time.time()
    stage.close_teams(*teams)
    least = least_share(starts(stage.lines(), teams), teams, seconds=WINDOW_SECONDS, since=since, until=until)
    return [
        Row("three equal teams: least part of an even share in any 10 s", least * 100, 80, "%", at_least=True)
    ]


def weights(stage: Stage) -> list[Row]:
    """Measure the shares of teams of weight 1, 2 and 4."""
    wanted = {"weight-1": 1, "weight-2": 2, "weight-4": 4}
    for team, weight in wanted.items():
        stage.team(team, weight=weight)
        stage.accept(team, 2_000)
    stage.until(lambda: {team for _, team in starts(stage.lines(), wanted)} == set(wanted), 60)
    since = time.time()
    stage.pass_time(2 * WINDOW_SECONDS)
    counts = shares(starts(stage.lines(), wanted), since, time.time())
    stage.close_teams(*wanted)
    off = [abs(counts[team] / counts.total() / (weight / 7) - 1) for team, weight in wanted.items()]
    told = " : ".join(str(counts[team]) for team in wanted)
    return [
        Row("weights 1 : 2 : 4, largest deviation of a share", max(off) * 100, 10, "%", note=f"{told} starts")
    ]


def caps(stage: Stage) -> list[Row]:
    """Measure how many renders of a team with max_running = 2 run at once, and that the rest is used."""
    stage.team("capped", max_running=2)
    stage.team("other")
    stage.accept("capped", 2_000)
    stage.accept("other", 2_000)
    stage.pass_time(WINDOW_SECONDS)
    stage.close_teams("capped", "other")
    lines = stage.lines()
    return [
        Row("max_running = 2: renders at once", most_at_once(lines, ["capped"]), 2, ""),
        Row(
            "both teams: renders at once",
            most_at_once(lines, ["capped", "other"]),
            THREADS,
            "",
            at_least=True,
        ),
    ]


def rates(stage: Stage) -> list[Row]:
    """Measure the starts of a team with 10 a second and a burst of 10."""
    rate, burst = 10.0, 10
    stage.team("rated", rate_per_second=rate, burst=burst)
    jobs = stage.accept("rated", 400, ms=20)
    stage.until(lambda: stage.started(jobs), 30)
    stage.pass_time(2 * WINDOW_SECONDS)
    stage.close_teams("rated")
    times = [at for at, _ in starts(stage.lines(), ["rated"])]
    after = times[burst:]  # the burst is not the rate
    reached = (len(after) - 1) / (after[-1] - after[0])
    return [
        Row("10/s, burst 10: starts of any window beyond rate x time", most_beyond(times, rate),
            burst + JITTER_STARTS, "", note="the bucket allows 10"),
        Row("10/s: part of the rate that is reached", reached / rate * 100, 95, "%", at_least=True),
    ]  # fmt: skip


def priorities(stage: Stage) -> list[Row]:
    """Count starts out of order in a team whose jobs have all ten priorities, one render at a time."""
    stage.team("ranked", max_running=1, paused=True)
    order = [7, 2, 9, 0, 5, 3, 8, 1, 6, 4]
    jobs = stage.accept("ranked", 40, priorities=order, ms=0)
    stage.pass_time(2)  # all of them are in Redis, so that order is a choice
    stage.limit("ranked", paused=False)
    began = stage.started_all(jobs, 60)
    rank = {str(job): (order[n % 10], n) for n, job in enumerate(jobs)}
    found = [rank[job] for job in sorted(began, key=began.__getitem__)]
    wrong = sum(a != b for a, b in zip(found, sorted(found), strict=True))
    return [Row("priorities 0 to 9, then age: starts out of order, of 40", wrong, 0, "")]


MEASURES: tuple[Callable[[Stage], list[Row]], ...] = (
    small_behind_large, equal_teams, weights, caps, rates, priorities,
)  # fmt: skip
