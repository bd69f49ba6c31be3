"""Servers away for longer than a lost worker or consumer is given: nobody is taken for dead on return.

The faults of these scenarios end no render, so the invariants allow neither a rescue nor a second start.
"""

import pytest

from .scenario import Scenario
from .settings import LOST_SECONDS

#: Redis gives a consumer up after 10 s without a beat, PostgreSQL's steward a worker after LOST_SECONDS.
LONGER_THAN_ANY_LEASE = 13.0
assert LONGER_THAN_ANY_LEASE > 3 * LOST_SECONDS
AWAY = ["redis-frozen", "redis-full", "postgres-stopped", "postgres-read-only", "relay-redis-half-open"]
TEN_MINUTES = 600.0


def _work_through(scenario: Scenario, *faults: str, seconds: float) -> None:
    """Have renders of a capped team run and others wait when it begins; ask for more afterwards."""
    scenario.post("capped", *[{"simulate": {"sleep_ms": 3000}, "max_attempts": 1}] * 4, batch=True)
    scenario.rendered(1)
    scenario.suffer(*faults, seconds=seconds)
    scenario.answered(2, timeout=60.0)


@pytest.mark.parametrize("fault", ["redis-frozen", "postgres-stopped", "postgres-read-only"])
def test_an_outage_longer_than_every_lease_takes_nobody_for_dead(scenario: Scenario, fault: str) -> None:
    _work_through(scenario, fault, seconds=LONGER_THAN_ANY_LEASE)


@pytest.mark.long
@pytest.mark.parametrize("fault", AWAY)
def test_half_a_minute_of_it_takes_nobody_for_dead(scenario: Scenario, fault: str) -> None:
    _work_through(scenario, fault, seconds=30.0)


@pytest.mark.long
@pytest.mark.timeout(TEN_MINUTES + 300)
def test_ten_minutes_without_postgresql_take_nobody_for_dead(scenario: Scenario) -> None:
    _work_through(scenario, "postgres-stopped", seconds=TEN_MINUTES)
