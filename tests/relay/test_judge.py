"""The judge: a row that the WAL shows before snapshots do is not poison for that."""

import time

from db.pool import connect
from relay.clock import PostgresClock
from relay.events import OutboxRow
from relay.judge import RETRY_SECONDS, Judge
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
