"""Faults that come one after another, or at the worst moment: each a story that has to end well."""

import signal
from datetime import datetime
from uuid import UUID

from psycopg import sql

from support.waiting import eventually

from .scenario import Scenario
from .world import World

COUNT = """
SELECT count(*) FROM job_events e JOIN jobs j ON j.id = e.job WHERE e.type = %s AND e.at >= to_timestamp(%s)
"""
ATTEMPTS = """
SELECT j.id, j.attempt FROM jobs j WHERE j.simulate ->> 'fail_first' = '3' AND created_at >= to_timestamp(%s)
"""
INSTANTS = """
SELECT extract(epoch FROM created_at)::float8, extract(epoch FROM finished_at)::float8 FROM jobs WHERE id = %s
"""
#: The story's own have a bound that nothing of the traffic has.
DEAD = "SELECT id FROM jobs WHERE created_at >= to_timestamp(%s) AND max_attempts = 7 AND status = 'dead'"
OF_THEM = "SELECT count(*) FROM job_events WHERE job = ANY(%s) AND type = %s"
PLUGIN = "SELECT plugin, active FROM pg_replication_slots WHERE slot_name = %s"


def _wait_events(world: World, kind: str, count: int) -> None:
    def found() -> int:
        row = world.admin.execute(COUNT, [kind, world.history.began]).fetchone()
        assert row is not None
        return int(row[0])

    eventually(lambda: found() >= count, timeout=60, describe=lambda: f"{count} of {kind}; {found()} so far")


def test_retries_that_wait_outlive_every_copy_of_redis(scenario: Scenario, world: World) -> None:
    # Each fails three times: some are running, some wait for their time, whenever Redis goes.
    scenario.post("free", *[{"simulate": {"fail_first": 3}, "max_attempts": 4}] * 20, batch=True)
    faults = ("redis-killed-empty", "redis-frozen", "redis-flushed", "redis-turned-back")
    for n, fault in enumerate(faults):
        _wait_events(world, "failed", 10 * n + 5)
        scenario.suffer(fault, seconds=1.0)
    began = world.history.began
    scenario.end()
    attempts: list[tuple[UUID, int]] = world.admin.execute(ATTEMPTS, [began]).fetchall()
    assert [attempt for _, attempt in attempts] == [4] * 20, "no retry was lost, none came twice"


def test_a_flush_finds_jobs_in_every_state(scenario: Scenario, world: World) -> None:
    scenario.post("heavy", *[{"simulate": {"fail_permanently": True}, "max_attempts": 7}] * 5, batch=True)
    _wait_events(world, "died", 5)
    with scenario.during("team-paused"):
        scenario.post("paused", *[{}] * 5, batch=True)
        scenario.post("capped", *[{"simulate": {"sleep_ms": 300}}] * 20, batch=True)
        scenario.post("free", *[{"simulate": {"fail_first": 2}, "max_attempts": 3}] * 10, batch=True)
        _wait_events(world, "failed", 5)
        world.valkey.client.flushall()
        scenario.answered(3)
        scenario.rendered(3)
    # The dead are not Redis' to forget: they are listed, and each replay starts its own job once more.
    with world.http() as http:
        told = http.get("/v1/jobs?status=dead&limit=100", headers=world.bearer("heavy")).json()
    dead: list[UUID] = [row[0] for row in world.admin.execute(DEAD, [scenario.history.began]).fetchall()]
    assert len(dead) == 5
    assert {str(job) for job in dead} <= {job["id"] for job in told["jobs"]}
    world.admin.execute("SELECT replay_jobs(%s, 'chaos', 'the flush was not theirs')", [dead])
    for kind in ("died", "claimed"):
        eventually(
            lambda k=kind: world.admin.execute(OF_THEM, [dead, k]).fetchone() == (10,),  # type: ignore[misc]
            timeout=30,
            describe="each of them has run twice, and died twice",
        )


def test_retries_come_due_while_their_worker_dies_and_the_others_lose_redis(scenario: Scenario) -> None:
    scenario.post("free", *[{"simulate": {"fail_first": 1}}] * 20, batch=True)
    for _ in range(3):
        scenario.rendered(1)
        scenario.suffer("worker-killed", "redis-storm")


def test_five_deploys_in_a_row_spend_no_attempt(scenario: Scenario, world: World) -> None:
    # Each takes 1.5 s and the grace is 1 s: a deploy interrupts nearly all, and one attempt is all they have.
    scenario.post("free", *[{"simulate": {"sleep_ms": 1500}, "max_attempts": 1}] * 8, batch=True)
    scenario.expect_interruptions()
    for _ in range(5):
        scenario.rendered(1)
        for worker in world.of("worker"):
            worker.signal(signal.SIGTERM)


def test_a_publication_that_is_dropped_under_pgoutput_is_found_missing_and_found_again(
    scenario: Scenario, world: World
) -> None:
    # What was written without a publication cannot be decoded by the one that comes later: the slot stood
    # before it, each stream ended at once with "publication does not exist", for ever.
    slot = world.database.slot
    for relay in world.of("relay"):
        relay.change_to(ONCOMMIT_DECODER="pgoutput")
    try:
        eventually(
            lambda: world.admin.execute(PLUGIN, [slot]).fetchone() == ("pgoutput", True),
            timeout=60,
            describe="a relay reads with pgoutput",
        )
        scenario.answered(1)
        scenario.suffer("publication-dropped", seconds=4.0)
        scenario.answered(2)
        scenario.rendered(2)
        scenario.suffer("outbox-remade", seconds=2.0)
        scenario.answered(2)
        scenario.end()
    finally:
        for relay in world.of("relay"):
            relay.change_to(ONCOMMIT_DECODER="auto")


def test_workers_that_start_while_redis_loads_wait_for_it(scenario: Scenario) -> None:
    scenario.suffer("redis-loading", "worker-killed")
    scenario.answered(2)
    scenario.rendered(4)


def test_processes_in_other_time_zones_tell_the_same_instants(scenario: Scenario, world: World) -> None:
    database = sql.Identifier(world.database.name)
    zones = {"portal": "America/New_York", "relay": "Asia/Kolkata", "worker": "Pacific/Chatham"}
    world.admin.execute(sql.SQL("ALTER DATABASE {} SET timezone = 'Australia/Lord_Howe'").format(database))
    scenario.expect_interruptions()
    try:
        for member in world.members:
            member.change_to(TZ=zones[member.part])
        scenario.post("free", {"simulate": {"fail_first": 1}})
        scenario.answered(3, timeout=60)
        answers = [entry for entry in scenario.history.of("answer") if entry["status"] == 202]
        scenario.end()
        singles = [entry for entry in answers if entry["path"] == "/v1/jobs"]
        assert singles
        with world.http() as http:
            for entry in singles:
                told = http.get(f"/v1/jobs/{entry['id']}", headers=world.bearer(entry["team"])).json()
                row = world.admin.execute(INSTANTS, [entry["id"]]).fetchone()
                shown = [datetime.fromisoformat(told[name]) for name in ("created_at", "finished_at")]
                assert all(at.utcoffset() is not None for at in shown), told
                assert [at.timestamp() for at in shown] == list(row or ()), told
    finally:
        world.admin.execute(sql.SQL("ALTER DATABASE {} RESET timezone").format(database))
        for member in world.members:
            member.change_to(TZ="UTC")
