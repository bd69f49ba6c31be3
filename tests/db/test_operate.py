"""The operator's settings and switches: pauses, limits, cancels, each with who and why."""

from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import ActiveSqlTransaction, CheckViolation

from db import operate, oversight
from db.operate import BadLimit, UnknownTeam

WHO = {"who": "operator:eve", "reason": "the printer is back"}


def test_a_pause_is_a_row_that_says_who_and_a_claim_obeys_at_once(
    admin: psycopg.Connection[Any],
    operator: psycopg.Connection[Any],
    worker: psycopg.Connection[Any],
    accept: Any,
) -> None:
    (job,) = accept()
    assert operate.pause(operator, "*", True, **WHO)
    assert not operate.pause(operator, "*", True, who="operator:bob", reason="me too")
    shown = oversight.lanes(operator, "*")[0]
    assert (shown["paused"], shown["paused_by"]) == (True, "operator:eve")
    claim = "SELECT outcome FROM claim_jobs(%s, ARRAY[%s], ARRAY[1])"
    assert worker.execute(claim, [uuid4(), job]).fetchone() == ("paused",)
    assert admin.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
    operate.set_limits(operator, "acme", {"weight": 3}, max_backlog=7, **WHO)
    assert operate.pause(operator, "acme", True, **WHO)
    operate.set_limits(operator, "acme", {"max_running": 2}, max_backlog=None, who="operator:bob", reason="x")
    team = oversight.teams(operator)[0]
    assert (team["paused"], team["paused_by"], team["weight"]) == (True, "operator:eve", 3)
    assert (team["max_running"], team["max_backlog"]) == (2, 7)
    assert operate.pause(operator, "*", False, **WHO)
    assert worker.execute(claim, [uuid4(), job]).fetchone() == ("paused",)
    assert operate.pause(operator, "acme", False, **WHO)
    assert worker.execute(claim, [uuid4(), job]).fetchone() == ("taken",)
    with pytest.raises(UnknownTeam):
        operate.pause(operator, "nobody", True, **WHO)
    with pytest.raises(UnknownTeam):
        operate.set_limits(operator, "nobody", {"weight": 1}, max_backlog=None, **WHO)


def test_an_operators_cancel_is_audited_when_it_changes_something(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    (job,) = accept()
    assert operate.cancel(operator, job, **WHO) == "cancelled"
    assert operate.cancel(operator, job, **WHO) == "already"
    assert operate.cancel(operator, uuid4(), **WHO) == "unknown"
    acts = admin.execute("SELECT action, who, reason FROM operator_actions").fetchall()
    assert acts == [("cancel", "operator:eve", "the printer is back")]


class Bound(NamedTuple):
    """A setting: whether None means "no limit", and on each side of each bound what is taken and refused."""

    setting: str
    nullable: bool
    good: list[Any]
    bad: list[Any]


BOUNDS = [
    Bound("max_running", True, [1, 100_000], [0, -1, 100_001]),
    Bound("weight", False, [1, 100], [0, 101]),
    Bound("burst", False, [1, 1_000_000], [0, 1_000_001]),
    Bound("rate_per_second", True, [1e-6, 0.5, 1e6], [0, -1, 9.9e-7, 1e-300, 5e-324, 1_000_000.1, 1e300]),
]
NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "1", True, [1], {}]


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.setting)
def test_each_bound_of_a_setting_holds_on_both_sides_and_says_what_is_allowed(
    operator: psycopg.Connection[Any], team: str, bound: Bound
) -> None:
    def give(value: Any) -> Any:
        operate.set_limits(operator, team, {bound.setting: value}, max_backlog=None, **WHO)
        return oversight.teams(operator)[0][bound.setting]

    good, bad = bound.good + [None] * bound.nullable, bound.bad + [None] * (not bound.nullable) + NO_NUMBERS
    assert [give(value) for value in good] == good
    for value in [*bad, *([1.5] if bound.setting != "rate_per_second" else [])]:
        with pytest.raises(BadLimit, match=f"{bound.setting} must be a .*number, [0-9.]+ to [0-9]+"):
            give(value)
    assert oversight.teams(operator)[0][bound.setting] == good[-1]


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.setting)
def test_the_table_itself_refuses_what_is_out_of_bounds(
    admin: psycopg.Connection[Any], team: str, bound: Bound
) -> None:
    """Also where somebody writes it by hand; a double may be NaN or infinite."""
    insert = f"INSERT INTO control (lane, who, {bound.setting}) VALUES ('{team}', 'hand', %s)".encode()
    for value in bound.good:
        admin.execute(insert, [value])
    rate = bound.setting == "rate_per_second"
    for value in [*bound.bad, *(float(text) for text in ("nan", "inf", "-inf") if rate)]:
        with pytest.raises(CheckViolation):
            admin.execute(insert, [value])


def test_unknown_settings_and_other_types_are_refused(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], team: str
) -> None:
    for changes in ({"wieght": 2}, {"paused": "yes"}, {"paused": None}, {"weight": 1, "x": 1}):
        with pytest.raises(BadLimit):
            operate.set_limits(operator, team, changes, max_backlog=None, **WHO)
    assert admin.execute("SELECT count(*) FROM control WHERE lane = 'acme'").fetchone() == (1,)


def test_settings_are_not_written_under_one_snapshot_for_the_whole_transaction(
    database: Any, team: str
) -> None:
    """Two changes at once: each would take the other's for not made, and undo it."""
    for level in (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE):
        with database.connect("operator") as conn:
            conn.isolation_level = level
            for call in (
                "SELECT set_lane(%s, '{\"weight\": 2}', 'x', 'y')",
                "SELECT pause_lane(%s, true, 'x', 'y')",
                "SELECT begin_replay('{}', %s, NULL, NULL, NULL, NULL, false, 'x', 'y')",
            ):
                with pytest.raises(ActiveSqlTransaction):
                    conn.execute(call, [team])
                conn.rollback()
