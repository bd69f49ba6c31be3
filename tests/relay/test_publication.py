"""The publication or the table is taken away and made again by another hand: noticed, said, healed."""

from typing import Any

import psycopg
import pytest

from db.migrate import migrate
from support.processes import Processes
from support.waiting import eventually

from .test_relay import accept, admin, expected, in_redis

__all__ = ["admin", "in_redis"]

#: No audit: what passed unseen is found because somebody noticed that it may have.
PGOUTPUT = {"ONCOMMIT_DECODER": "pgoutput", "ONCOMMIT_AUDIT_SECONDS": "3600"}
DROP = "DROP PUBLICATION oncommit_outbox"
MAKE = "CREATE PUBLICATION oncommit_outbox FOR TABLE outbox, control WITH (publish = 'insert')"
NARROW = "ALTER PUBLICATION oncommit_outbox DROP TABLE outbox"
WIDEN = "ALTER PUBLICATION oncommit_outbox ADD TABLE outbox"
REMAKE = """
CREATE TABLE outbox_model (LIKE outbox INCLUDING ALL);
DROP TABLE outbox CASCADE;
ALTER TABLE outbox_model RENAME TO outbox;
ALTER TABLE outbox ADD CONSTRAINT outbox_queue_fkey FOREIGN KEY (queue) REFERENCES queues;
DELETE FROM schema_migrations WHERE name = 'functions';
"""


@pytest.mark.parametrize(("take", "give"), [(DROP, MAKE), (NARROW, WIDEN)], ids=["publication", "table"])
def test_rows_that_passed_between_two_looks_are_published(
    admin: psycopg.Connection, processes: Processes, in_redis: Any, take: str, give: str
) -> None:
    processes.relay(**PGOUTPUT)
    accept(admin)
    eventually(lambda: in_redis() == expected(admin), timeout=10)
    admin.execute(take)  # type: ignore[arg-type]
    accept(admin, 3)
    admin.execute(give)  # type: ignore[arg-type]
    eventually(lambda: in_redis() == expected(admin), timeout=30, describe="what nobody streamed")


def test_without_the_publication_it_says_what_to_do_and_polls(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    relay = processes.relay(**PGOUTPUT)
    admin.execute(DROP)
    relay.wait_log("run `oncommit migrate`", timeout=30)
    accept(admin, 3)
    eventually(lambda: in_redis() == expected(admin), timeout=15, describe="polled")
    migrate(processes.database.dsn())
    relay.wait_ready()
    accept(admin, 3)
    eventually(lambda: in_redis() == expected(admin), timeout=10, describe="streamed again")


@pytest.mark.parametrize("decoder", ["auto", "pgoutput"])
def test_a_table_that_was_made_again_is_said_and_goes_on_after_migrate(
    admin: psycopg.Connection, processes: Processes, in_redis: Any, decoder: str
) -> None:
    relay = processes.relay(**PGOUTPUT | {"ONCOMMIT_DECODER": decoder})
    with admin.transaction():
        admin.execute(REMAKE)
    relay.wait_log("run `oncommit migrate`", timeout=30)
    migrate(processes.database.dsn())
    relay.wait_ready()
    accept(admin, 3)
    eventually(lambda: in_redis() == expected(admin), timeout=20)
