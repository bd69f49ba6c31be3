"""A minute of random faults; what fails prints the seed and the command that repeats it."""

import random

import pytest

from .faults import FAULTS
from .schedule import run
from .world import World

MINUTES = 1.0


@pytest.mark.timeout(300)  # the minute, and as long to settle as a busy machine may need
def test_a_minute_of_random_faults(world: World) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"again with: python -m tests.chaos --minutes {MINUTES:g} --seed {seed}")  # noqa: T201
    history = world.new_history()
    outcome = run(world, seed, MINUTES, list(FAULTS), print)
    assert not outcome.violations, "\n".join([*outcome.violations, f"seed {seed}, history: {history.file}"])
