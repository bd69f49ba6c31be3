"""`oncommit dispatch probe` as oncommit_operator, beside a real relay and a real worker."""

import json
from typing import Any

import psycopg
import pytest

from ops.probing import Stage, summary
from support.desk import Desk
from support.processes import Processes
from support.waiting import eventually

LEFT = (
    "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM probes), (SELECT count(*) FROM quarantine)"
)

# What the broker of a version that has no such actor does, at once.
PUT_ASIDE = b"""
CREATE FUNCTION put_aside() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM quarantine_intent(NEW.message_id, 'unknown actor ''probe''', 'worker:old');
  RETURN NULL;
END $$;
CREATE TRIGGER put_aside AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION put_aside();
"""


@pytest.fixture
def live(desk: Desk, processes: Processes) -> Desk:
    """A desk whose Redis is the one of the processes that a test starts."""
    desk.env |= {"ONCOMMIT_REDIS_URL": processes.valkey.url}
    return desk


def keys(processes: Processes) -> set[str]:
    """Return the keys of Redis but for who waits and when it served."""
    names = {key.decode() for key in processes.valkey.client.scan_iter()}
    return {name for name in names if not name.endswith((":wake", ":consumers", ":clock"))}


def nothing_is_left(desk: Desk) -> None:
    assert desk.admin.execute(LEFT).fetchone() == (0, 0, 0)


def checks(told: dict[str, Any]) -> list[str]:
    return [cause["check"] for cause in told["causes"]]


def probe(desk: Desk, *arguments: str, code: int | tuple[int, int] = 0) -> dict[str, Any]:
    done = desk.run("dispatch", "probe", "--json", *arguments)
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_probes_pass_every_stage_touch_no_team_and_leave_nothing(live: Desk, processes: Processes) -> None:
    live.accept(1, team="red")
    live.ok("teams", "set", "red", "--max-running", "1", "--rate", "1", "--reason", "a test")
    live.admin.execute("DELETE FROM outbox")
    processes.relay()
    processes.worker(threads=2)
    probe(live, "--count", "1")
    before = keys(processes)
    limits = processes.valkey.client.hgetall("oncommit:limits")
    told = probe(live, "--count", "200", "--reason", "the rollout")
    assert (told["count"], told["missing"], told["causes"], told["redis"]) == (200, 0, [], None)
    times = [told["stages"][stage] for stage in ("published", "claimed", "finished")]
    assert [stage["passed"] for stage in times] == [200, 200, 200]
    for figure in ("median", "p95", "max"):
        ordered = [stage[figure] for stage in times]
        assert ordered == sorted(ordered), told
        assert ordered[0] >= 0
        assert ordered[-1] < 20_000
    assert times[2]["max"] > 0
    nothing_is_left(live)
    assert keys(processes) == before
    assert processes.valkey.client.hgetall("oncommit:limits") == limits
    row = live.admin.execute(
        "SELECT who LIKE 'operator:%%', reason, target ->> 'count' FROM operator_actions"
        " WHERE action = 'probe' ORDER BY id DESC LIMIT 1"
    ).fetchone()
    assert row == (True, "the rollout", "200")


def test_a_human_reads_a_table(live: Desk, processes: Processes) -> None:
    processes.relay()
    processes.worker(threads=1)
    lines = live.ok("dispatch", "probe", "--count", "3").splitlines()
    assert lines[0].startswith("3 intents committed in ")
    assert [line.split("\t")[:2] for line in lines[2:5]] == [
        ["published", "3"],
        ["claimed", "3"],
        ["finished", "3"],
    ]


def test_an_outbox_that_fell_out_of_its_publication_is_caught_with_what_mends_it(
    live: Desk, processes: Processes
) -> None:
    relay = processes.relay(ONCOMMIT_DECODER="pgoutput")
    processes.worker(threads=2)
    assert probe(live, "--count", "2")["missing"] == 0
    live.admin.execute("ALTER PUBLICATION oncommit_outbox DROP TABLE outbox")
    # They are missing, unless the relay has a reason to look through the table at that very moment.
    told = probe(live, "--count", "2", "--timeout", "1", code=(1, 3))
    assert told["missing"] in {0, 2}, relay.log_text()
    (cause,) = [cause for cause in told["causes"] if cause["check"] == "publication"]
    assert "does not pass inserts into outbox" in cause["detail"]
    assert "oncommit migrate" in cause["advice"]
    # The relay that starts anew finds out and polls: probes come through, and the canary still objects.
    relay.stop()
    processes.relay(ready=False, ONCOMMIT_DECODER="pgoutput")
    told = probe(live, "--count", "2", code=1)
    assert (told["missing"], checks(told)) == (0, ["publication"])
    live.admin.execute("ALTER PUBLICATION oncommit_outbox ADD TABLE outbox")
    assert probe(live, "--count", "2")["causes"] == []
    nothing_is_left(live)


def test_without_a_relay_or_a_worker_the_cause_is_named(live: Desk, processes: Processes) -> None:
    told = probe(live, "--count", "2", "--timeout", "0.3", code=3)
    assert (told["missing"], checks(told)) == (2, ["relay", "worker"])
    relay = processes.relay()
    told = probe(live, "--count", "2", "--timeout", "2", code=3)
    assert (told["missing"], checks(told)) == (2, ["worker"])
    assert told["stages"]["published"]["passed"] == 2
    assert told["stages"]["claimed"] == {"passed": 0, "median": None, "p95": None, "max": None}
    relay.stop()
    nothing_is_left(live)
    assert processes.valkey.client.hlen("oncommit:previews:messages") == 0


def test_a_relay_that_polls_is_not_to_be_started(live: Desk, processes: Processes) -> None:
    """First it has no slot, since a transaction is open; then it has one, and no stream of it.

    It publishes where the probe does not look: else some probes would come through.
    """
    database = live.database
    wrong = database.url("relay").replace(database.server.passwords["oncommit_relay"], "rotated")

    def cause() -> tuple[bool, bool, bool]:
        told = probe(live, "--count", "1", "--timeout", "0.1", code=3)
        (found,) = [found for found in told["causes"] if found["check"] == "relay"]
        polls = "a relay runs, and polls" in found["detail"] and "relay.no_stream" in found["advice"]
        return polls, "does not exist" in found["detail"], "start the relay" in found["advice"]

    with database.connect() as writer:
        writer.execute("SELECT pg_current_xact_id()")
        relay = processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=wrong, ONCOMMIT_NAMESPACE="elsewhere")
        relay.wait_log("relay.no_stream", timeout=30)
        assert cause() == (True, True, False)
    eventually(lambda: cause() == (True, False, False), timeout=30, describe=cause)
    relay.stop()
    eventually(lambda: cause() == (False, False, True), timeout=30, describe=cause)
    nothing_is_left(live)


def test_a_slot_of_another_database_is_named(live: Desk) -> None:
    server, slot = live.database.server, live.database.slot
    with server.connect("postgres") as conn:
        conn.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [slot, server.decoder])
        try:
            told = probe(live, "--count", "1", "--timeout", "0.1", code=3)
        finally:
            conn.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    assert told["causes"][0]["detail"].endswith("belongs to another database of this cluster")
    assert "ONCOMMIT_SLOT" in told["causes"][0]["advice"]


def test_a_pause_holds_probes_too_and_what_was_accepted_is_kept(live: Desk, processes: Processes) -> None:
    processes.relay()
    processes.worker(threads=2)
    live.ok("dispatch", "pause", "--reason", "the rollout")
    live.accept(5)
    told = probe(live, "--count", "2", "--timeout", "3", code=3)
    assert checks(told) == ["pause"]
    assert told["causes"][0]["detail"].endswith(": the rollout")
    assert live.admin.execute("SELECT count(*) FROM outbox").fetchone() == (5,)
    eventually(lambda: processes.valkey.client.hlen("oncommit:previews:messages") == 5)
    live.ok("dispatch", "resume")
    assert probe(live, "--count", "2")["missing"] == 0


def test_redis_away_is_said_and_no_password_is_shown(desk: Desk) -> None:
    done = desk.run("dispatch", "probe", "--count", "1", "--timeout", "0.2")
    assert done.returncode == 3
    assert "1 of 1 did NOT come through" in done.stdout
    assert "Redis: not reachable from here (ConnectionError)" in done.stdout
    nothing_is_left(desk)


def test_a_worker_that_does_not_know_probes_is_named(live: Desk, processes: Processes) -> None:
    processes.relay()
    live.admin.execute(PUT_ASIDE)
    told = probe(live, "--count", "2", "--timeout", "5", code=1)
    assert (told["missing"], checks(told)) == (2, ["quarantine"])
    assert told["causes"][0]["detail"] == "put aside by worker:old: unknown actor 'probe'"
    nothing_is_left(live)


def test_what_a_killed_probe_left_is_swept_by_a_later_one(desk: Desk) -> None:
    killed = desk.start("dispatch", "probe", "--count", "7", "--timeout", "60")
    eventually(lambda: desk.admin.execute(LEFT).fetchone() == (7, 7, 0))
    killed.kill()
    killed.communicate()
    desk.run("dispatch", "probe", "--count", "1", "--timeout", "0")
    assert desk.admin.execute(LEFT).fetchone() == (7, 7, 0)  # it might be running still
    desk.admin.execute("UPDATE probes SET sent_at = sent_at - interval '61 minutes'")
    desk.run("dispatch", "probe", "--count", "1", "--timeout", "0")
    nothing_is_left(desk)


@pytest.mark.parametrize("count", [0, 1001, None])
def test_a_run_is_bounded_by_the_schema(desk: Desk, count: int | None) -> None:
    with desk.database.connect("operator") as conn, pytest.raises(psycopg.errors.InvalidParameterValue):
        conn.execute("SELECT send_probes(%s, 'previews', 'me', 'a test')", [count])


def test_no_team_takes_the_lane_of_probes(desk: Desk) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        desk.admin.execute("SELECT create_team('oncommit-probe', 'me')")


def test_figures_are_of_what_was_measured() -> None:
    assert summary([]) == Stage(0, None, None, None)
    assert summary([3.0]) == Stage(1, 3.0, 3.0, 3.0)
    assert summary([float(n) for n in range(1, 101)]) == Stage(100, 50.5, 95.0, 100.0)
