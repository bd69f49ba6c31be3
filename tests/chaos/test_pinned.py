"""Every fault on its own, and every scenario that once broke something: each holds for good."""

import random
import signal

import pytest

from .faults import FAULTS
from .scenario import Scenario
from .world import World

#: Named one by one: a fault that is forgotten here fails `test_every_fault_is_pinned`.
REDIS = sorted(name for name in FAULTS if name.startswith("redis-"))
RELAY = sorted(name for name in FAULTS if name.startswith(("relay-killed", "relays-")))
SLOT = sorted(name for name in FAULTS if name.startswith(("slot-", "publication-")))
PORTAL = sorted(name for name in FAULTS if name.startswith("portal-") and "postgres" not in name)
POSTGRES = ["postgres-killed", "postgres-stopped", "sessions-cut"]
DATABASE = ["postgres-read-only", "postgres-serializable", "tables-locked", "standby-lags", "outbox-remade"]
#: Broken at the same time, link by link: one process loses its database, others Redis, clients the portal.
NETWORK = [
    (f"portal-postgres-{one}", f"relay-redis-{two}", f"worker-postgres-{three}")
    for one, two, three in (
        ("cut", "half-open", "slow"),
        ("half-open", "slow", "dropped"),
        ("slow", "dropped", "cut"),
        ("dropped", "cut", "half-open"),
    )
] + [
    (f"client-portal-{one}", f"relay-postgres-{two}", f"worker-redis-{three}")
    for one, two, three in (
        ("slow", "cut", "half-open"),
        ("dropped", "half-open", "slow"),
        ("cut", "slow", "dropped"),
        ("half-open", "dropped", "cut"),
    )
]
WORKERS = [
    "worker-killed",
    "worker-process-killed",
    "worker-frozen",
    "worker-stopped",
    "workers-stopped",
    "worker-stopped-without-redis",
]
ALONE = ["relay-frozen", "store-full", "team-paused", "clocks-wrong", "worker-clock-wrong"]


def test_every_fault_is_pinned() -> None:
    pinned = {*REDIS, *RELAY, *SLOT, *PORTAL, *POSTGRES, *DATABASE, *WORKERS, *ALONE}
    assert pinned | {name for names in NETWORK for name in names} == FAULTS.keys()


@pytest.mark.parametrize("fault", [*REDIS, *RELAY, *SLOT, *PORTAL])
def test_nothing_is_lost_or_done_twice(scenario: Scenario, fault: str) -> None:
    scenario.suffer(fault, seconds=1.0)
    scenario.answered(2)


@pytest.mark.parametrize("fault", POSTGRES)
def test_a_database_that_comes_back_finds_nobody_dead(scenario: Scenario, fault: str) -> None:
    scenario.post("free", {"simulate": {"sleep_ms": 2500}}, {"simulate": {"sleep_ms": 2500}}, batch=True)
    scenario.suffer(fault, seconds=2.0)
    scenario.answered(2)


@pytest.mark.parametrize("fault", DATABASE)
def test_a_database_that_says_no_or_answers_late_loses_nothing(scenario: Scenario, fault: str) -> None:
    scenario.post("free", *[{"simulate": {"sleep_ms": 1500}}] * 4, batch=True)
    scenario.rendered(1)
    scenario.suffer(fault, seconds=3.0)
    scenario.answered(2)


@pytest.mark.parametrize("links", NETWORK, ids=" ".join)
def test_networks_fail_between_several_processes(scenario: Scenario, links: tuple[str, ...]) -> None:
    scenario.suffer(*links, seconds=2.0)
    scenario.answered(2)


@pytest.mark.parametrize("fault", WORKERS)
def test_a_workers_end_costs_one_attempt_at_most(scenario: Scenario, fault: str) -> None:
    scenario.post("free", *[{"simulate": {"sleep_ms": 1500}, "max_attempts": 2}] * 4, batch=True)
    scenario.rendered(2)
    scenario.suffer(fault)


def test_a_relay_that_wakes_after_a_takeover_publishes_nothing(scenario: Scenario) -> None:
    scenario.suffer("relay-frozen")
    scenario.answered(5)


@pytest.mark.parametrize("fault", ["clocks-wrong", "worker-clock-wrong"])
def test_clocks_that_are_an_hour_fast_change_nothing(scenario: Scenario, fault: str) -> None:
    scenario.post("capped", *[{"simulate": {"fail_first": 1}}] * 4, batch=True)
    scenario.suffer(fault, seconds=2.0)
    scenario.answered(2)


def test_a_full_store_spends_no_attempt(scenario: Scenario, world: World) -> None:
    # Previews of their own: one that is stored already takes no room.
    documents = [world.put("free", f"fresh {n} {random.random()}") for n in range(4)]
    jobs = [{"document": document, "max_attempts": 1} for document in documents]
    with scenario.during("store-full"):
        scenario.post("free", *jobs, batch=True)
        scenario.rendered(2)


def test_a_pause_survives_the_loss_of_everything_but_the_database(scenario: Scenario, world: World) -> None:
    with scenario.during("team-paused"):
        scenario.post("paused", {}, {}, batch=True)
        world.valkey.client.flushall()
        scenario.expect_interruptions()
        for member in world.members:
            member.kill()
        scenario.answered(3, timeout=60)


def test_a_portal_that_stops_without_its_database_answers_with_problems(scenario: Scenario) -> None:
    # What was under way when the grace was over got uvicorn's 500, in plain text.
    with scenario.during("portal-postgres-half-open"):
        scenario.asked(2)
        scenario.suffer("portal-stopped", seconds=2.0)
    scenario.answered(2)


def test_a_document_that_kills_its_worker_is_dead_in_the_end(scenario: Scenario, world: World) -> None:
    for worker in world.of("worker"):
        worker.expects_to_die = True
    scenario.expect_interruptions()
    scenario.post("heavy", {"simulate": {"crash": "worker"}, "max_attempts": 2})
    scenario.end()
    for worker in world.of("worker"):
        worker.expects_to_die = False


def test_a_rolling_stop_of_everything_loses_nothing(scenario: Scenario, world: World) -> None:
    scenario.expect_interruptions()
    for member in world.members:
        member.signal(signal.SIGTERM)
        scenario.answered(1, timeout=60)
