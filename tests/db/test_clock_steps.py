"""The server's clock is set back, or ahead, by an hour: nothing is stuck, nothing is done twice."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from db import claims, outbox, replay
from db.claims import Answer, How
from db.replay import SLICE, Filter
from support.dead import die, replays

WHO = {"who": "operator:eve", "reason": "the printer is back"}


def step_back(admin: psycopg.Connection[Any]) -> None:
    """Leave the database as it is once its clock is set back an hour: what was written lies ahead."""
    admin.execute(
        "UPDATE outbox SET created_at = created_at + interval '1 h', not_before = not_before + interval '1 h'"
    )
    admin.execute(
        "UPDATE jobs SET created_at = created_at + interval '1 h', updated_at = updated_at + interval '1 h',"
        " finished_at = finished_at + interval '1 h', claimed_at = claimed_at + interval '1 h'"
    )


@pytest.mark.parametrize("older_than_ms", [0, 60_000], ids=["resync", "audit"])
def test_intents_from_before_the_clock_was_set_back_are_not_overlooked(
    admin: psycopg.Connection[Any], accept: Any, older_than_ms: int
) -> None:
    accept(3)
    step_back(admin)
    accept(2)
    found = outbox.heads(admin, 0, 2**62, 100, older_than_ms=older_than_ms)
    assert len(found) == (5 if older_than_ms == 0 else 3)


def test_a_retry_waits_no_longer_than_it_was_told_though_the_clock_was_set_back(
    admin: psycopg.Connection[Any], worker: psycopg.Connection[Any], accept: Any
) -> None:
    (job,) = accept()
    claim = claims.claim(worker, uuid4(), [(job, 1)])[0]
    assert claim.claim is not None
    me = admin.execute("SELECT worker FROM jobs WHERE id = %s", [job]).fetchone()
    assert me is not None
    claims.end(worker, me[0], claim.claim, How.FAILED, error_class="X", error="x", delay_ms=90_000)
    (intent,) = outbox.intents(admin, [i for i, _, _ in outbox.heads(admin, 0, 2**62, 10)])
    assert 80_000 < intent.delay_ms <= 90_000
    step_back(admin)
    (intent,) = outbox.intents(admin, [intent.id])
    assert intent.delay_ms == pytest.approx(90_000, abs=50)
    assert claims.claim(worker, uuid4(), [(job, 2)])[0].answer is Answer.TAKEN, "due is the broker's matter"


def test_a_replay_finds_what_died_by_the_clock_before_and_takes_each_once(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    jobs = accept(10)
    die(admin, jobs)
    step_back(admin)
    assert sum(row["jobs"] for row in replay.plan(operator, Filter())) == 10
    run = replay.begin(operator, Filter(), afresh=False, **WHO)
    total, more = 0, True
    for _ in range(20):
        done = replay.replay_slice(operator, run, 3, **WHO)
        total, more = total + done.replayed, done.more
        if not more:
            break
        die(admin, jobs[::2])  # at a time that lies before the run's beginning, by this clock
    assert not more
    assert total == 10
    assert replays(admin) == dict.fromkeys(jobs, 1)
    again = replay.begin(operator, Filter(since=timedelta(days=1)), afresh=True, **WHO)
    assert replay.replay_slice(operator, again, SLICE, **WHO).replayed == 5
