"""The operator's commands against real servers: jobs, dead, dispatch, teams, tokens, prune, lists."""

import json
import signal
from uuid import UUID, uuid4

import pytest

from support.desk import CLAIM, DIGEST, FINISH, Desk
from support.valkey import Valkey
from support.waiting import eventually

WHY = ("--reason", "the printer is back")


def test_jobs_are_listed_and_shown_without_names_or_renderer_texts(desk: Desk) -> None:
    (job,) = desk.dead()
    desk.accept(2, team="blue", kind="thumbnail")
    assert [row["id"] for row in desk.json("jobs", "list", "--status", "dead")] == [str(job)]
    assert len(desk.json("jobs", "list", "--team", "blue", "--kind", "thumbnail", "--limit", "1")) == 1
    shown = desk.json("jobs", "show", str(job))
    assert [event["type"] for event in shown["events"]] == ["accepted", "claimed", "died"]
    for output in (desk.ok("jobs", "show", str(job)), json.dumps(shown), desk.ok("dead", "show", str(job))):
        assert "RenderCrashed" in output
        for forbidden in ("secret title", "a renderer's text", "sha256:"):
            assert forbidden not in output


@pytest.mark.parametrize("command", [("jobs", "show"), ("dead", "show")])
def test_an_unknown_job_is_one_line_and_exit_code_1(desk: Desk, command: tuple[str, str]) -> None:
    done = desk.run(*command, str(uuid4()))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert desk.run(*command, "no-uuid").returncode == 2


def test_a_cancelled_job_says_who_and_why(desk: Desk) -> None:
    (job,) = desk.accept()
    assert "cancelled" in desk.ok("jobs", "cancel", str(job), "--who", "operator:eve", *WHY)
    event = desk.json("jobs", "show", str(job))["events"][-1]
    assert (event["who"], event["data"]["reason"]) == ("operator:eve", WHY[1])
    assert desk.run("jobs", "cancel", str(job)).returncode == 2
    assert desk.run("jobs", "cancel", str(uuid4()), *WHY).returncode == 1


def test_a_dry_run_prints_the_plan_and_changes_nothing(desk: Desk) -> None:
    desk.dead(3, "RenderTimeout")
    desk.dead(2, "RenderCrashed", team="blue", kind="thumbnail")
    before = desk.admin.execute("SELECT * FROM jobs ORDER BY id").fetchall()
    plan = desk.json("dead", "replay", "--all", "--dry-run")
    groups = [(row["team"], row["kind"], row["error_class"], row["jobs"]) for row in plan["groups"]]
    assert groups == [("blue", "thumbnail", "RenderCrashed", 2), ("red", "page", "RenderTimeout", 3)]
    assert plan["jobs"] == 5
    limited = desk.json("dead", "replay", "--team", "red", "--limit", "2", "--since", "1h", "--dry-run")
    assert limited["jobs"] == 2
    assert "RenderTimeout" in desk.ok("dead", "replay", "--error", "RenderTimeout", "--dry-run")
    assert desk.admin.execute("SELECT * FROM jobs ORDER BY id").fetchall() == before
    for table in ("replay_runs", "operator_actions"):
        assert desk.admin.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (0,)


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        WHY,
        ("--team", "red"),
        ("--all", "--reason", "  "),
        ("--all", "--team", "red", *WHY),
        (str(UUID(int=1)), "--team", "red", *WHY),
        (str(UUID(int=1)), "--limit", "3", *WHY),
        ("--since", "2026-01-01T00:00:00", *WHY),
        ("--since", "yesterday", *WHY),
        ("--all", "--rate", "0", *WHY),
        ("--run", str(UUID(int=1)), *WHY),
    ],
    ids=" ".join,
)
def test_an_unclear_replay_is_wrong_usage_and_replays_nothing(desk: Desk, wrong: tuple[str, ...]) -> None:
    desk.dead(2)
    assert desk.run("dead", "replay", *wrong).returncode == 2
    assert not desk.replays()


def test_a_replay_by_id_tells_each_outcome(desk: Desk) -> None:
    (dead,) = desk.dead()
    (queued,) = desk.accept()
    unknown = uuid4()
    done = desk.run("dead", "replay", str(dead), str(queued), str(unknown), str(dead), "--json", *WHY)
    told = {row["id"]: row["outcome"] for row in json.loads(done.stdout)["jobs"]}
    assert told == {str(dead): "replayed", str(queued): "already queued", str(unknown): "unknown"}
    assert done.returncode == 1
    assert desk.ok("dead", "replay", str(dead), *WHY) == f"{dead}\talready queued\n"
    assert desk.replays() == {dead: 1}


def test_six_commands_at_once_replay_one_job_once(desk: Desk) -> None:
    (job,) = desk.dead()
    started = [desk.start("dead", "replay", str(job), *WHY) for _ in range(6)]
    outcomes = [process.communicate(timeout=120)[0].split("\t")[1].strip() for process in started]
    assert sorted(outcomes) == ["already queued"] * 5 + ["replayed"]
    assert desk.replays() == {job: 1}
    (act,) = [row for row in desk.json("actions", "list") if row["action"] == "replay"]
    assert (act["reason"], act["target"]["jobs"]) == (WHY[1], [str(job)])


def test_a_killed_replay_given_again_replays_each_of_ten_thousand_once_though_half_die_again(
    desk: Desk,
) -> None:
    for _ in range(2):
        desk.dead(5_000)
    jobs = [row[0] for row in desk.admin.execute("SELECT id FROM jobs").fetchall()]
    command = ("dead", "replay", "--team", "red", "--rate", "2000/s", *WHY)
    first = desk.start(*command)
    eventually(lambda: len(desk.replays()) >= 1_000, timeout=60)
    first.send_signal(signal.SIGKILL)
    _, err = first.communicate()
    assert "the same command goes on" in err
    desk.die(jobs[::2])
    done = desk.replays()
    assert 1_000 <= len(done) < 10_000
    again = desk.run(*command)
    assert again.returncode == 0, again.stderr
    assert "going on with run" in again.stderr
    assert desk.replays() == dict.fromkeys(jobs, 1)
    assert again.stdout == f"{10_000 - len(done)} jobs replayed, 10000 by the run\n"


def test_an_interrupted_replay_says_how_to_go_on_and_its_run_can_be_named(desk: Desk) -> None:
    desk.dead(30)
    started = desk.start("dead", "replay", "--all", "--rate", "5/s", *WHY)
    eventually(lambda: len(desk.replays()) >= 5)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=20)
    assert started.returncode == 1
    run = err.split("oncommit dead replay --run ")[1].strip()
    assert desk.json("dead", "replay", "--run", run, *WHY)["done"] == 30
    assert set(desk.replays().values()) == {1}
    assert desk.json("dead", "replay", "--run", run, *WHY)["replayed"] == 0


def test_a_pause_shows_who_and_why_and_a_team_and_everything_are_apart(desk: Desk) -> None:
    desk.accept()
    desk.ok("dispatch", "pause", "--who", "operator:eve", *WHY)
    assert desk.json("dispatch", "pause", "--reason", "me too") | {"paused_at": 0} == {
        "team": None, "changed": False, "paused": True, "paused_by": "operator:eve", "paused_reason": WHY[1],
        "paused_at": 0,
    }  # fmt: skip
    desk.ok("dispatch", "pause", "--team", "red", *WHY)
    status = desk.json("dispatch", "status")
    assert (status["paused"], status["lanes"][0]["paused"], status["lanes"][0]["waiting"]) == (True, True, 1)
    assert "operator:eve" in desk.ok("dispatch", "status")
    done = desk.run("dispatch", "resume", "--team", "red")
    assert "everything is paused still" in done.stderr
    assert desk.json("dispatch", "resume")["changed"]
    assert desk.admin.execute(CLAIM, [uuid4(), desk.json("jobs", "list")[0]["id"]]).fetchone() == ("taken",)
    assert desk.run("dispatch", "pause", "--team", "nobody", *WHY).returncode == 2
    assert desk.run("dispatch", "pause").returncode == 2


def test_status_counts_from_postgresql_and_says_when_redis_does_not_answer(
    desk: Desk, valkey: Valkey
) -> None:
    desk.dead(2)
    desk.accept(3)
    status = desk.json("dispatch", "status")
    (lane,) = status["lanes"]
    assert (lane["waiting"], lane["running"], lane["retrying"], lane["dead"]) == (3, 0, 0, 2)
    assert status["due_intents"] == 3
    assert status["oldest_due_seconds"] > 0
    assert status["slot"] is None
    assert status["redis"]["reachable"] is False
    assert "not reachable" in desk.ok("dispatch", "status")
    desk.env["ONCOMMIT_REDIS_URL"] = valkey.url
    plugin = desk.database.server.decoder
    desk.admin.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [desk.database.slot, plugin])
    status = desk.json("dispatch", "status")
    assert status["redis"]["queues"]["previews"]["waiting"] == 0
    assert status["slot"]["plugin"] == plugin
    assert status["slot"]["lag_bytes"] >= 0
    assert "NOT READ" in desk.ok("dispatch", "status")


@pytest.fixture
def busy(desk: Desk) -> tuple[UUID, UUID]:
    """A job that is being rendered, beside one that waits and one that retries later."""
    running, retrying, _ = (desk.accept()[0] for _ in range(3))
    worker = uuid4()
    for job in (running, retrying):
        assert desk.admin.execute(CLAIM, [worker, job]).fetchone() == ("taken",)
    desk.admin.execute("UPDATE jobs SET max_attempts = 2 WHERE id = %s", [retrying])
    end = "SELECT end_claim(%s, %s, 1, 1, 'failed', 'X', 'x', 1800000, true, 'w')"
    assert desk.admin.execute(end, [worker, retrying]).fetchone() == ("done",)
    return worker, running


@pytest.mark.usefixtures("busy")
def test_a_drain_stops_at_its_limit_with_code_3_and_says_what_remains(desk: Desk) -> None:
    done = desk.run("dispatch", "drain", "--timeout", "0.5", "--json", *WHY)
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert not told["drained"]
    left = {row["status"]: row for row in told["remaining"]}
    assert {status: row["jobs"] for status, row in left.items()} == {
        "processing": 1,
        "queued": 1,
        "retrying": 1,
    }
    assert left["retrying"]["first_due"] is not None
    assert told["undo"] == "oncommit dispatch resume"
    assert desk.json("dispatch", "status")["paused_reason"] == f"drain: {WHY[1]}"
    assert desk.json("dispatch", "drain", "--abort")["paused"] is False


def test_a_drain_ends_when_nothing_runs_and_does_not_wait_for_retries(
    desk: Desk, busy: tuple[UUID, UUID]
) -> None:
    worker, running = busy
    started = desk.start("dispatch", "drain", "--timeout", "60", "--json", *WHY)
    eventually(lambda: desk.json("dispatch", "status")["paused"])
    desk.admin.execute(FINISH, [worker, running, DIGEST, 3])
    out, err = started.communicate(timeout=60)
    assert started.returncode == 0, err
    assert json.loads(out)["drained"]
    assert [row["status"] for row in json.loads(out)["remaining"]] == ["queued", "retrying"]


@pytest.mark.usefixtures("busy")
def test_a_killed_drain_leaves_a_pause_that_status_shows(desk: Desk) -> None:
    started = desk.start("dispatch", "drain", "--timeout", "60", "--who", "operator:eve", *WHY)
    eventually(lambda: desk.json("dispatch", "status")["paused"])
    started.kill()
    started.communicate()
    assert "paused by operator:eve" in desk.ok("dispatch", "status")
    desk.ok("dispatch", "resume")
    assert desk.json("dispatch", "status")["paused"] is False


def test_limits_are_set_one_by_one_and_cleared_with_none(desk: Desk) -> None:
    desk.accept()
    desk.ok("teams", "set", "red", "--max-running", "4", "--rate", "2.5", "--burst", "3", "--weight", "2")
    row = desk.json("teams", "set", "red", "--max-running", "none", "--max-backlog", "7")
    assert (row["max_running"], row["rate_per_second"], row["burst"], row["weight"]) == (None, 2.5, 3, 2)
    assert row["max_backlog"] == 7
    assert "red" in desk.ok("teams", "list")
    for wrong in (
        (),
        ("--max-running", "0"),
        ("--rate", "-1"),
        ("--weight", "101"),
        ("--rate", "nan"),
        ("--rate", "9e-7"),
        ("--burst", "0"),
    ):
        assert desk.run("teams", "set", "red", *wrong).returncode == 2, wrong
    assert desk.run("teams", "set", "nobody", "--weight", "2").returncode == 2


def test_a_token_is_listed_without_itself_and_revoked_once(desk: Desk) -> None:
    desk.accept()
    made = desk.json("tokens", "create", "--team", "red", "--label", "evil\x1b[31m\nlabel")
    listed = desk.json("tokens", "list", "--team", "red")
    assert [row["id"] for row in listed] == [made["id"]]
    text = desk.ok("tokens", "list")
    assert made["token"] not in text + json.dumps(listed)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 2
    assert "revoked" in desk.ok("tokens", "revoke", made["id"])
    assert "already" in desk.ok("tokens", "revoke", made["id"])
    assert desk.run("tokens", "revoke", str(uuid4())).returncode == 1
    assert desk.json("tokens", "list") == []
    assert len(desk.json("tokens", "list", "--all")) == 1


def test_quarantine_and_workers_are_listed(desk: Desk) -> None:
    (job,) = desk.accept()
    desk.admin.execute("SELECT quarantine_intent(message_id, 'no such actor', 'relay') FROM outbox")
    desk.admin.execute("INSERT INTO workers (id, host, pid, threads) VALUES (gen_random_uuid(), 'h', 1, 4)")
    (row,) = desk.json("quarantine", "list", "--lane", "red")
    assert (row["job"], row["reason"]) == (str(job), "no such actor")
    assert "body" not in row
    assert desk.json("workers", "list")[0]["running"] == 0
    assert desk.json("dead", "replay", "--error", "Quarantined", *WHY)["replayed"] == 1


def test_pruning_counts_first_and_keeps_the_dead(desk: Desk) -> None:
    (gone,) = desk.accept()
    (dead,) = desk.dead()
    desk.ok("jobs", "cancel", str(gone), *WHY)
    assert desk.json("prune", "--older-than", "30d", "--dry-run")["jobs"] == 0
    assert desk.json("prune", "--older-than", "0s", "--dry-run")["jobs"] == 1
    assert "1 jobs" in desk.ok("prune", "--older-than", "0s")
    assert desk.admin.execute("SELECT id FROM jobs").fetchall() == [(dead,)]
    assert desk.json("prune", "--older-than", "0s", "--include-dead")["jobs"] == 1
    for wrong in ((), ("--older-than", "30"), ("--older-than", "-1d")):
        assert desk.run("prune", *wrong).returncode == 2


def test_the_viewer_is_told_that_it_may_not(desk: Desk) -> None:
    desk.env["ONCOMMIT_DATABASE_URL"] = desk.database.url("viewer")
    for command in (("jobs", "list"), ("dispatch", "status"), ("dispatch", "pause", *WHY), ("dead", "list")):
        done = desk.run(*command)
        assert done.returncode == 1
        assert "InsufficientPrivilege" in done.stderr
        assert len(done.stderr.splitlines()) == 1
