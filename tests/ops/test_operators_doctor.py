"""The doctor finds what is wrong and says what to do; what it may not see it says too."""

import json
from typing import Any

import pytest
from pydantic import SecretStr

from db.catalog import Slot
from ops import diagnose_redis, diagnose_stream
from ops.commands.doctor import findings_of
from ops.diagnose_postgres import compare_clocks
from ops.diagnosis import Finding, Level
from ops.ports import free_port
from runtime.settings import Settings
from support.desk import Desk
from support.postgres import Database, Role
from support.processes import Processes
from support.valkey import Valkey
from support.waiting import eventually

WHY = ("--reason", "the printer is back")


def examined(database: Database, redis_url: str, role: Role | None = None, **more: Any) -> dict[str, Finding]:
    """Return the doctor's findings by check."""
    given = Settings(
        database_url=SecretStr(database.url(role)), redis_url=SecretStr(redis_url), slot=database.slot, **more
    )
    return {found.check: found for found in findings_of(given)}


def level_of(found: dict[str, Finding], check: str) -> Level:
    return found[check].level


def test_a_healthy_system_has_no_failure_as_superuser_and_as_operator(
    database: Database, valkey: Valkey
) -> None:
    found = examined(database, valkey.url)
    assert not [f for f in found.values() if f.level in {Level.FAIL, Level.SKIP}]
    wal2json = database.server.has_wal2json
    assert ("installed and allowed" in found["decoder"].detail) == wal2json
    for check in ("wal_level", "migrations", "roles", "REPLICATION", "publication", "clock of PostgreSQL",
                  "clock of Redis", "Redis maxmemory-policy"):  # fmt: skip
        assert level_of(found, check) is Level.OK, check
    mine = examined(database, valkey.url, "operator")
    assert [f.check for f in mine.values() if f.level is Level.SKIP] == ["decoder"]
    assert not [f for f in mine.values() if f.level is Level.FAIL]


def test_the_relay_sees_the_decoder_and_says_what_it_may_not_see(database: Database, valkey: Valkey) -> None:
    found = examined(database, valkey.url, "relay")
    assert level_of(found, "decoder") is Level.OK
    assert level_of(found, "migrations") is level_of(found, "work") is Level.SKIP
    with_url = examined(
        database, valkey.url, "operator", replication_url=SecretStr(database.url("relay")), decoder="auto"
    )
    assert level_of(with_url, "decoder") is Level.OK


def test_a_decoder_that_cannot_be_had_is_a_failure_only_when_it_is_wished_for(
    database: Database, valkey: Valkey
) -> None:
    wished = level_of(examined(database, valkey.url, decoder="wal2json"), "decoder")
    assert wished is (Level.OK if database.server.has_wal2json else Level.FAIL)
    assert level_of(examined(database, valkey.url, decoder="pgoutput"), "decoder") is Level.OK


def test_what_was_taken_away_is_found_with_what_to_do(database: Database, valkey: Valkey) -> None:
    database.admin.execute("ALTER PUBLICATION oncommit_outbox DROP TABLE control")
    database.admin.execute("DELETE FROM schema_migrations WHERE name = 'functions'")
    found = examined(database, valkey.url, "operator")
    for check in ("publication", "migrations"):
        assert level_of(found, check) is Level.FAIL
        assert "oncommit migrate" in found[check].advice
    database.admin.execute("UPDATE schema_migrations SET checksum = 'x'")
    assert level_of(examined(database, valkey.url), "migrations") is Level.FAIL


def test_an_empty_database_is_told_to_migrate(database: Database, valkey: Valkey) -> None:
    given = Settings(
        database_url=SecretStr(database.server.dsn("postgres")),
        redis_url=SecretStr(valkey.url),
        slot=database.slot,
    )
    found = {f.check: f for f in findings_of(given)}
    assert level_of(found, "migrations") is Level.FAIL
    assert "oncommit migrate" in found["migrations"].advice


def test_a_slot_that_nobody_reads_is_a_warning_and_a_foreign_one_a_failure(
    database: Database, valkey: Valkey
) -> None:
    assert level_of(examined(database, valkey.url, "operator"), "slot") is Level.WARN
    plugin = database.server.decoder
    database.admin.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [database.slot, plugin])
    found = examined(database, valkey.url, "operator")["slot"]
    assert (found.level, "NOT READ" in found.detail) == (Level.WARN, True)
    given = Settings(
        database_url=SecretStr(database.server.dsn("postgres")),
        redis_url=SecretStr(valkey.url),
        slot=database.slot,
    )
    assert {f.check: f for f in findings_of(given)}["slot"].level is Level.FAIL


def test_a_relay_that_polls_is_not_to_be_started(
    database: Database, valkey: Valkey, processes: Processes
) -> None:
    """First it has no slot, since a transaction is open; then it has one, and no stream of it."""
    wrong = database.url("relay").replace(database.server.passwords["oncommit_relay"], "rotated")

    def slot() -> tuple[Level, bool, bool, bool]:
        found = examined(database, valkey.url, "operator")["slot"]
        told = "polls" in found.detail, "does not exist" in found.detail
        return found.level, *told, "start the relay" in found.advice

    with database.connect() as writer:
        writer.execute("SELECT pg_current_xact_id()")
        relay = processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=wrong)
        relay.wait_log("relay.no_stream", timeout=30)
        assert slot() == (Level.WARN, True, True, False)
    eventually(lambda: slot() == (Level.WARN, True, False, False), timeout=30, describe=slot)
    relay.stop()
    eventually(lambda: slot() == (Level.WARN, False, False, True), timeout=30, describe=slot)


@pytest.mark.parametrize(
    ("slot", "level"),
    [
        (Slot(True, "pgoutput", True, "reserved", 0, 16_000_000), Level.OK),
        (Slot(True, "pgoutput", True, "reserved", 64_000_001, 80_000_000), Level.WARN),
        (Slot(True, "pgoutput", True, "extended", 0, 1_000_000_001), Level.WARN),
        (Slot(True, "pgoutput", False, "lost", None, None), Level.FAIL),
    ],
)
def test_a_slots_state_is_judged(slot: Slot, level: Level) -> None:
    assert diagnose_stream._judge("s", slot).level is level


def test_redis_is_judged_by_policy_memory_role_and_age(database: Database, valkey: Valkey) -> None:
    valkey.config(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    assert level_of(examined(database, valkey.url), "Redis maxmemory-policy") is Level.WARN
    valkey.config(maxmemory="1mb", maxmemory_policy="noeviction")
    assert level_of(examined(database, valkey.url), "Redis memory") is Level.WARN
    old = {
        f.check: f
        for f in diagnose_redis._judge({"redis_version": "6.2.14", "role": "slave", "cluster_enabled": 1})
    }
    assert [level_of(old, c) for c in ("Redis", "Redis role", "Redis cluster")] == [Level.FAIL] * 3


def test_redis_away_is_a_failure_and_no_password_is_shown(database: Database) -> None:
    found = examined(database, f"redis://:hunter2@127.0.0.1:{free_port()}/0")["Redis"]
    assert found.level is Level.FAIL
    assert "hunter2" not in str(found)
    assert examined(database, "http://nonsense")["Redis"].level is Level.FAIL


def test_postgresql_away_is_a_failure_and_redis_is_examined_all_the_same(valkey: Valkey) -> None:
    url = f"postgresql://me:hunter2@127.0.0.1:{free_port()}/x"
    found = {
        f.check: f
        for f in findings_of(Settings(database_url=SecretStr(url), redis_url=SecretStr(valkey.url)))
    }
    assert found["PostgreSQL"].level is Level.FAIL
    assert found["Redis"].level is Level.OK
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("difference", "round_trip", "level"),
    [(0.9, 0.0, Level.OK), (-1.1, 0.0, Level.WARN), (1.4, 1.0, Level.OK), (3600.0, 0.1, Level.WARN)],
)
def test_a_clock_is_wrong_only_beyond_what_the_round_trip_explains(
    difference: float, round_trip: float, level: Level
) -> None:
    assert compare_clocks("clock", difference, round_trip).level is level


def test_the_command_tells_a_script_and_a_human(desk: Desk, valkey: Valkey) -> None:
    done = desk.run("doctor", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert [c["check"] for c in told["checks"] if c["level"] == "fail"] == ["Redis"]
    desk.env["ONCOMMIT_REDIS_URL"] = valkey.url
    desk.ok("dispatch", "pause", *WHY)
    text = desk.ok("doctor")
    assert "warn  dispatch: paused by operator:" in text
    assert "-> oncommit dispatch resume" in text


def test_a_user_of_redis_who_may_not_run_the_script_is_found(database: Database, valkey: Valkey) -> None:
    client: Any = valkey.client
    rights = ("on", ">pw", "+@all", "-@dangerous", "+info")
    client.execute_command("ACL", "SETUSER", "short", *rights, "~oncommit:*")
    client.execute_command("ACL", "SETUSER", "whole", *rights, "~oncommit", "~oncommit:*")
    try:
        url = f"redis://{{}}:pw@127.0.0.1:{valkey.port}/2"
        refused = examined(database, url.format("short"))["Redis script"]
        assert (refused.level, "~oncommit and" in refused.advice) == (Level.FAIL, True)
        assert examined(database, url.format("whole"))["Redis script"].level is Level.OK
    finally:
        client.execute_command("ACL", "DELUSER", "short", "whole")


def test_amazons_way_of_letting_a_role_replicate_is_known(database: Database, valkey: Valkey) -> None:
    """There no role has the attribute: rds_replication is granted."""
    database.admin.execute("CREATE ROLE rds_replication")
    database.admin.execute("ALTER ROLE oncommit_relay NOREPLICATION")
    try:
        assert level_of(examined(database, valkey.url), "REPLICATION") is Level.FAIL
        database.admin.execute("GRANT rds_replication TO oncommit_relay")
        assert level_of(examined(database, valkey.url), "REPLICATION") is Level.OK
    finally:
        database.admin.execute("ALTER ROLE oncommit_relay REPLICATION")
        database.admin.execute("DROP ROLE rds_replication")
