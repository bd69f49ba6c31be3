"""What the render log says about fairness: shares of starts, renders at once, starts in a window.

Pure functions over the log's lines, which no table and no Redis had a hand in.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def starts(lines: Iterable[Line], teams: Collection[str]) -> list[tuple[float, str]]:
    """Return (time in seconds, team) of each start of these teams, earliest first."""
    return sorted(
        (line["time"], line["team"]) for line in lines if line["phase"] == "start" and line["team"] in teams
    )


def shares(found: Sequence[tuple[float, str]], since: float, until: float) -> Counter[str]:
    """Count the starts of each team with since <= time < until."""
    return Counter(team for at, team in found if since <= at < until)


def least_share(
    found: Sequence[tuple[float, str]], teams: Sequence[str], *, seconds: float, since: float, until: float
) -> float:
    """Return the least part of an even share that any team gets in any window of so many seconds.

    Windows lie within [since, until), and one begins at each start: between two starts nothing changes.

    Raises:
        ValueError: no window fits, so nothing was measured.

    """
    begins = [at for at, _ in found if since <= at <= until - seconds]
    if not begins:
        raise ValueError(f"{until - since:.1f} s hold no window of {seconds:g} s")
    least = float("inf")
    for begin in begins:
        counts = shares(found, begin, begin + seconds)
        least = min(least, min(counts[team] for team in teams) * len(teams) / counts.total())
    return least


def most_at_once(lines: Iterable[Line], teams: Collection[str]) -> int:
    """Return how many renders of these teams ran at the same time, at most; one without an end runs on."""
    changes = sorted(
        (line["time"], 1 if line["phase"] == "start" else -1) for line in lines if line["team"] in teams
    )
    running = most = 0
    for _, change in changes:  # at the same instant, ends come first
        running += change
        most = max(most, running)
    return most


def most_beyond(times: Sequence[float], rate: float) -> float:
    """Return the most by which any window's starts exceed rate x its length: a bucket allows `burst`."""
    times = sorted(times)
    lowest, most = float("inf"), 0.0
    for n, at in enumerate(times):
        # Starts i..n are n - i + 1 in (t_n - t_i) seconds: keep the best beginning so far.
        lowest = min(lowest, n - rate * at)
        most = max(most, n - rate * at - lowest + 1)
    return most


def most_in_window(times: Sequence[float], seconds: float) -> int:
    """Return the largest number of starts in any half-open window of so many seconds."""
    times = sorted(times)
    return max((bisect_left(times, at + seconds) - n for n, at in enumerate(times)), default=0)
