"""The judge: a row that the WAL shows before snapshots do is not poison for that."""

import time
from datetime import timedelta

import pytest

from db.pool import connect
from relay.clock import PostgresClock
from relay.events import OutboxRow
from relay.judge import RETRY_SECONDS, Judge
from relay.rows import outbox_row
from support.postgres import Database

APPEND = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
VALUES ('shop|1', 'receipts', 'shop', 5, '{}') RETURNING id
"""


def test_a_queue_that_was_added_with_its_first_intent_is_found_once_both_can_be_seen(
    database: Database,
) -> None:
    with connect(database.dsn("relay"), "test judge") as conn, database.connect() as application:
        judge = Judge(conn, PostgresClock())
        judge.learn()
        application.execute("INSERT INTO queues VALUES ('receipts')")
        row = application.execute(APPEND).fetchone()
        assert row is not None
        # The relay reads it from the WAL, and does not see the transaction yet.
        assert judge.messages([OutboxRow(row[0], "shop|1", "receipts", "shop", 5, None, "{}")]) == []
        assert (judge.settle_waiting(), judge.found_late) == (0, False)
        application.commit()
        time.sleep(RETRY_SECONDS)  # as the judge itself leaves between two tries
        assert (judge.settle_waiting(), judge.found_late) == (0, True)
        assert database.admin.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
        assert database.admin.execute("SELECT count(*) FROM quarantine").fetchone() == (0,)


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_step_of_the_servers_clock_makes_no_retry_wait_for_it(database: Database, step: timedelta) -> None:
    """The clock is asked once a minute; what was committed since its step is due by the new time."""
    with connect(database.dsn("relay"), "test judge") as conn:
        clock = PostgresClock()
        clock.sample(conn)
        row = conn.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        created = row[0] + step
        columns = {
            "id": 1, "message_id": "shop|1", "queue": "previews", "lane": "shop", "priority": 5, "body": "{}",
            "not_before": str(created + timedelta(seconds=5)), "created_at": str(created),
        }  # fmt: skip
        intent = outbox_row(columns)
        assert isinstance(intent, OutboxRow)
        [message] = Judge(conn, clock).messages([intent])
        assert message.delay_ms <= 5_000


def test_no_lane_is_opened_by_default_before_every_setting_was_told(database: Database) -> None:
    """A default would open a paused lane whose row of `control` the resync has not come to yet."""
    with connect(database.dsn("relay"), "test judge") as conn:
        judge = Judge(conn, PostgresClock())
        for _ in range(2):  # a reign over Redis that lost everything begins anew
            assert judge.defaults(["late", "early"]) == []
            assert [limit.lane for limit in judge.limits_are_told()] == ["early", "late"]
            assert [limit.lane for limit in judge.defaults(["late", "new"])] == ["new"]
            assert judge.defaults(["late", "new"]) == []
            judge.forget_lanes()
