"""A schedule: faults drawn from a seed, one or two at a time, until the time is up; then all is mended.

`run` is one whole run in a world that stands: traffic, faults, waiting until everything is settled,
evidence, violations.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .evidence import Evidence, gather, summary, wait_settled
from .fault import Fault
from .faults import FAULTS
from .invariants import violations
from .traffic import Traffic
from .world import World

#: Between one round of faults and the next, seconds: sometimes too short to recover from the last.
GAP_SECONDS = (0.5, 4.0)
TWO_AT_ONCE = 0.35
#: Longest between two ends of jobs after the last fault: a lost worker (4 s), a slot given away (10 s), a
#: dead consumer's messages (10 s), retries (2 s each), on a busy machine.
SETTLE_SECONDS = 90.0
TELL_EVERY_SECONDS = 5.0


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    evidence: Evidence | None
    violations: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    def numbers(self) -> dict[str, int]:
        """Return the run in numbers."""
        return (summary(self.evidence) if self.evidence else {}) | {"violations": len(self.violations)}


def pick(rng: random.Random, names: Sequence[str]) -> list[type[Fault]]:
    """Return one fault, or two that touch different things."""
    first = FAULTS[rng.choice(names)]
    if rng.random() < TWO_AT_ONCE:
        others = [FAULTS[n] for n in names if not FAULTS[n].touches & first.touches]
        if others:
            return [first, rng.choice(others)]
    return [first]


def disturb(
    world: World, rng: random.Random, names: Sequence[str], seconds: float, say: Callable[[str], None]
) -> None:
    """Inject and heal faults for so long."""
    until, told_at = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        faults = [kind(world, rng) for kind in pick(rng, names)]
        say(f"{' + '.join(fault.name for fault in faults)}")
        endure(world, rng, faults)
        world.pass_time(rng.uniform(*GAP_SECONDS))
        if time.monotonic() - told_at > TELL_EVERY_SECONDS:
            told_at = time.monotonic()
            counts = world.history.count
            say(f"  {until - told_at:.0f} s left; {counts('request')} requests, {counts('inject')} faults")


def endure(world: World, rng: random.Random, faults: Sequence[Fault]) -> None:
    """Inject these, let them last as long as the longest, heal them in reverse."""
    injected: list[Fault] = []
    try:
        for fault in faults:
            fault.tell()
            injected.append(fault)
            fault.inject()
        world.pass_time(max(rng.uniform(*fault.hold_seconds) for fault in faults))
    finally:
        for fault in reversed(injected):
            fault.heal()
            world.history.add("heal", fault=fault.name)


def conclude(world: World, traffic: Traffic, *, settle_seconds: float = SETTLE_SECONDS) -> Outcome:
    """Stop the traffic, wait until everything is settled, and judge."""
    began = time.monotonic()
    traffic.stop()
    unsettled: list[str] = []
    try:
        wait_settled(world, settle_seconds)
    except AssertionError as error:
        unsettled.append(f"settled: {error}")
    evidence = gather(world)
    return Outcome(evidence, unsettled + violations(evidence), time.monotonic() - began)


def run(world: World, seed: int, minutes: float, names: Sequence[str], say: Callable[[str], None]) -> Outcome:
    """Do a whole random run."""
    rng = random.Random(f"{seed} faults")
    traffic = Traffic(world, world.history, seed)
    traffic.start()
    try:
        disturb(world, rng, names, minutes * 60, say)
    except BaseException:
        traffic.abandon()
        raise
    say("all mended: settling")
    return conclude(world, traffic)
