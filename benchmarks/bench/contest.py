"""A contest: contestants are set up once each and then take turns, round by round; what counts is the ratio.

A machine drifts by tens of percent within minutes. Two contestants that take turns within seconds drift
together, so each round gives one ratio, and the median of the rounds' ratios is what a floor is held against.
"""

import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise

#: One turn: does its work and returns what was seen, by figure.
Turn = Callable[[], Mapping[str, float]]
#: Sets a contestant up for the block, and gives its turn.
Entrance = Callable[[], AbstractContextManager[Turn]]
Say = Callable[[str], None]
LEAST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that every turn returns; `less`: the smaller, the better."""

    key: str
    unit: str
    less: bool = False


@dataclass(frozen=True, slots=True)
class Floor:
    """What has to hold: ours divided by the other's is at least `bound`, or at most where less is better.

    `bound` None: the ratio is shown, and nothing is asked of it. `absolute`: the bound is of our own figure.
    """

    figure: str
    ours: str
    other: str
    bound: float | None
    absolute: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """A contest: its name, what is done, the figures, the floors, and how contestants come in.

    `entrances` is asked once, with the ground that all contestants stand on and the rounds' size (1: whole).
    """

    name: str
    title: str
    figures: Sequence[Figure]
    floors: Sequence[Floor]
    entrances: Callable[..., Mapping[str, Entrance]]

    def figure(self, key: str) -> Figure:
        """Return the figure of that key."""
        return next(figure for figure in self.figures if figure.key == key)


@dataclass(slots=True)
class Outcome:
    """What a contest gave.

    Attributes:
        values: by contestant and figure, one for each round; a round that failed has none.
        failures: by contestant, a sentence.
        rounds: how many there were.

    """

    measure: Measure
    rounds: int
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def of(self, contestant: str, figure: str) -> list[float]:
        """Return one contestant's values of a figure, in the order of the rounds."""
        return self.values.get(contestant, {}).get(figure, [])

    def ratios(self, floor: Floor) -> list[float]:
        """Return ours / other of each round that both have ended; our own figure for an absolute floor."""
        ours = self.of(floor.ours, floor.figure)
        if floor.absolute:
            return ours
        return [mine / theirs for mine, theirs in zip(ours, self.of(floor.other, floor.figure), strict=False)]

    def verdict(self, floor: Floor) -> str:
        """Return `held`, `MISSED`, `shown`, or `FAILED` when one side has no complete set of rounds."""
        ratios = self.ratios(floor)
        if len(ratios) < self.rounds:
            return "FAILED"
        if floor.bound is None:
            return "shown"
        middle = statistics.median(ratios)
        less = self.measure.figure(floor.figure).less
        return "held" if (middle <= floor.bound if less else middle >= floor.bound) else "MISSED"

    def good(self) -> bool:
        """Tell whether every contestant ended every round and every floor is held."""
        return not self.failures and all(self.verdict(f) in {"held", "shown"} for f in self.measure.floors)


def run(measure: Measure, entrances: Mapping[str, Entrance], rounds: int, say: Say) -> Outcome:
    """Let the contestants take turns; one that fails is told, leaves, and the others go on."""
    outcome = Outcome(measure, rounds)
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for name, entrance in entrances.items():
            say(f"{measure.name}: {name} comes in")
            try:
                turns[name] = stack.enter_context(_leaving(name, entrance, outcome, say))
            except Exception as error:  # noqa: BLE001 -- told and counted; the others go on
                _fail(outcome, name, error, say)
        for number in range(rounds):
            # Nobody is always the one who comes after a certain other.
            order = list(turns) if number % 2 == 0 else list(reversed(turns))
            for name in order:
                try:
                    seen = turns[name]()
                except Exception as error:  # noqa: BLE001 -- as above
                    _fail(outcome, name, error, say)
                    del turns[name]
                    continue
                kept = outcome.values.setdefault(name, {})
                for figure in measure.figures:
                    kept.setdefault(figure.key, []).append(seen[figure.key])
                told = ", ".join(f"{seen[f.key]:,.4g} {f.unit}" for f in measure.figures)
                say(f"{measure.name}: round {number + 1} of {rounds}, {name}: {told}")
    return outcome


class _leaving(AbstractContextManager[Turn]):  # noqa: N801 -- reads as a verb where it is used
    """A contestant's setting up and taking down; what goes wrong at the end is told and is no failure."""

    def __init__(self, name: str, entrance: Entrance, outcome: Outcome, say: Say) -> None:
        self._name, self._outcome, self._say = name, outcome, say
        self._inner = entrance()

    def __enter__(self) -> Turn:
        return self._inner.__enter__()

    def __exit__(self, *about: object) -> None:
        try:
            self._inner.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 -- its figures are in already
            self._say(f"{self._name} did not leave in order: {type(error).__name__}: {error}")


def _fail(outcome: Outcome, name: str, error: Exception, say: Say) -> None:
    traceback.print_exception(error)
    outcome.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    say(f"{outcome.measure.name}: {name} FAILED: {outcome.failures[name]}")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which so many percent lie, by straight lines between the ranks.

    Raises:
        ValueError: there are no values.

    """
    ranked = sorted(values)
    if not ranked:
        raise ValueError("no values")
    if len(ranked) == 1:
        return ranked[0]
    at = percent / 100 * (len(ranked) - 1)
    low, high = list(pairwise(ranked))[min(int(at), len(ranked) - 2)]
    return low + (high - low) * (at - min(int(at), len(ranked) - 2))


def spread(values: Sequence[float]) -> Iterator[float]:
    """Yield median, least and most."""
    yield statistics.median(values)
    yield min(values)
    yield max(values)
