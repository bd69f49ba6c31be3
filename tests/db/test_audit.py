"""Every function by which an operator writes leaves a row that says who, why, and what it touched."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from db import keeping, operate, probes, replay
from db.replay import Filter
from support.dead import die
from support.postgres import Database

ACT = {"who": "operator:eve", "reason": "the printer is back"}
AUDIT = "SELECT action, who, reason, target::text FROM operator_actions ORDER BY id"
WRITERS = """
SELECT DISTINCT p.proname::text FROM pg_proc p
 WHERE p.pronamespace = 'public'::regnamespace AND p.provolatile = 'v'
   AND has_function_privilege('oncommit_operator', p.oid, 'EXECUTE')
   AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
"""
#: A message of another hand, put aside.
FOREIGN = """
INSERT INTO quarantine (intent, message_id, queue, lane, priority, body, reason, who)
VALUES (1, 'acme|receipt-1', 'previews', 'acme', 3, '{}', 'no such actor', 'relay')
"""
#: It takes away what a run of probes has left of itself; the run's own row says who and why.
NO_ACT = {"end_probe"}


@dataclass
class Scene:
    """An operator with things to act on; `accept` is the fixture."""

    database: Database
    operator: Connection[Any]
    accept: Callable[..., list[Any]]

    @property
    def dsn(self) -> str:
        return self.database.dsn("operator")

    def dead(self) -> Any:
        (job,) = self.accept()
        die(self.database.admin, [job])
        return job

    def token(self) -> Any:
        return operate.store_token(self.dsn, operate.new_token(), operate.TokenOrder("acme"), who="x")


def pause(scene: Scene) -> object:
    assert operate.pause(scene.operator, "acme", True, **ACT)
    return "acme"


def resume(scene: Scene) -> object:
    operate.pause(scene.operator, "acme", True, who="operator:bob", reason="first")
    assert operate.pause(scene.operator, "acme", False, **ACT)
    return "acme"


def set_limits(scene: Scene) -> object:
    operate.set_limits(scene.operator, "acme", {"max_running": 17}, max_backlog=None, **ACT)
    return 17


def set_backlog(scene: Scene) -> object:
    operate.set_limits(scene.operator, "acme", {}, max_backlog=17, **ACT)
    return 17


def create_team(scene: Scene) -> object:
    assert operate.create_team(scene.dsn, "new-here", who=ACT["who"])
    return "new-here"


def create_token(scene: Scene) -> object:
    order = operate.TokenOrder("acme", ["read"])
    return operate.store_token(scene.dsn, operate.new_token(), order, who=ACT["who"])


def revoke(scene: Scene) -> object:
    token = scene.token()
    assert operate.revoke(scene.operator, token, **ACT)
    return token


def cancel(scene: Scene) -> object:
    (job,) = scene.accept()
    assert operate.cancel(scene.operator, job, **ACT) == "cancelled"
    return job


def replay_by_id(scene: Scene) -> object:
    job = scene.dead()
    assert replay.replay(scene.operator, [job], **ACT) == {job: "replayed"}
    return job


def begin_replay(scene: Scene) -> object:
    return replay.begin(scene.operator, Filter("acme", None, None, None, None), afresh=True, **ACT)


def replay_slice(scene: Scene) -> object:
    job = scene.dead()
    wanted = Filter("acme", None, None, None, None)
    run = replay.begin(scene.operator, wanted, afresh=True, who="operator:bob", reason="first")
    assert replay.replay_slice(scene.operator, run, 10, **ACT).replayed == 1
    return job


def prune(scene: Scene) -> object:
    scene.dead()
    before = datetime.now(UTC) + timedelta(days=1)
    assert sum(done.jobs for done in keeping.prune(scene.operator, before, dead_too=True, **ACT)) == 1
    return before.date()


def verify_artifacts(scene: Scene) -> object:
    assert list(keeping.artifacts(scene.operator, repair=False, **ACT)) == []
    return "limit"


def repair_artifacts(scene: Scene) -> object:
    assert list(keeping.artifacts(scene.operator, repair=True, **ACT)) == []
    return "limit"


def probe(scene: Scene) -> object:
    return probes.send(scene.operator, 1, queue="previews", **ACT).run


def replay_quarantined(scene: Scene) -> object:
    scene.database.admin.execute(FOREIGN)
    (number,) = scene.database.admin.execute("SELECT id FROM quarantine").fetchone() or (0,)
    assert operate.replay_quarantined(scene.operator, number, **ACT) == "replayed"
    return "acme|receipt-1"


#: Act -> (the function of the database, the row's action). Making a team or a token asks for no reason.
ACTS: dict[Callable[[Scene], object], tuple[str, str]] = {
    pause: ("pause_lane", "set_lane"),
    resume: ("pause_lane", "set_lane"),
    set_limits: ("set_lane", "set_lane"),
    set_backlog: ("set_backlog", "set_backlog"),
    create_team: ("create_team", "create_team"),
    create_token: ("create_token", "create_token"),
    revoke: ("revoke_token", "revoke_token"),
    cancel: ("cancel_as_operator", "cancel"),
    replay_by_id: ("replay_jobs", "replay"),
    begin_replay: ("begin_replay", "begin_replay"),
    replay_slice: ("replay_slice", "replay"),
    prune: ("prune_jobs", "prune"),
    verify_artifacts: ("artifacts_page", "verify_artifacts"),
    repair_artifacts: ("artifacts_page", "repair_artifacts"),
    probe: ("send_probes", "probe"),
    replay_quarantined: ("replay_quarantined", "replay_quarantined"),
}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_act_leaves_one_row_that_says_who_why_and_what(
    act: Callable[[Scene], object],
    database: Database,
    operator: psycopg.Connection[Any],
    accept: Callable[..., list[Any]],
) -> None:
    touched = str(act(Scene(database, operator, accept)))
    rows = database.admin.execute(AUDIT).fetchall()
    *_, (action, who, reason, target) = [row for row in rows if row[1] == ACT["who"]]
    assert [row[1] for row in rows].count(ACT["who"]) == 1
    assert (action, who) == (ACTS[act][1], ACT["who"])
    assert reason == ("created" if act in {create_team, create_token} else ACT["reason"])
    assert touched in target


def test_no_function_by_which_an_operator_writes_is_left_out(database: Database) -> None:
    found = {name for (name,) in database.admin.execute(WRITERS).fetchall()}
    assert found == {function for function, _ in ACTS.values()} | NO_ACT
