"""An intent that no message was ever made of: the audit finds it in the table.

Each attached stream is followed by a resync, so a row that was merely dropped is found by that. Here the
stream is whole and never shows the row: it lies in a table that inherits from `outbox`, and neither the
publication nor wal2json's list of tables names that one. Whoever reads `outbox` sees it all the same.
"""

from typing import Any

import psycopg

from support.processes import Processes, Running
from support.waiting import eventually

from .test_relay import accept, admin, expected, in_redis

__all__ = ["admin", "in_redis"]

BESIDE = """
CREATE TABLE beside () INHERITS (outbox);
CREATE FUNCTION go_beside() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO beside VALUES (NEW.*); RETURN NULL; END $$;
CREATE TRIGGER beside BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION go_beside();
"""


def published(relay: Running, road: str) -> bool:
    """Tell whether exactly one message came by that road."""
    return f'relay_published_total{{road="{road}"}} 1.0' in relay.page("/metrics")


def test_an_intent_that_was_never_published_is_found_by_the_audit(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    relay = processes.relay(ONCOMMIT_AUDIT_SECONDS="3")
    relay.wait_log("relay.caught_up")  # the resync is over
    admin.execute(BESIDE)
    [unseen] = accept(admin)
    admin.execute("DROP TRIGGER beside ON outbox")
    [seen] = accept(admin)
    assert expected(admin) == {f"acme|{unseen}.1", f"acme|{seen}.1"}
    # Behind it in the WAL, so the stream has passed it by once this one is there.
    eventually(lambda: f"acme|{seen}.1" in in_redis(), describe="the one that the stream shows")
    eventually(lambda: in_redis() == expected(admin), describe="the one that it does not show")
    eventually(lambda: published(relay, "audit"))
    assert published(relay, "stream")
    told = [line for line in relay.log_lines() if line["event"] == "relay.caught_up" and line["republished"]]
    assert [(line["occasion"], line["republished"]) for line in told] == [("audit", 1)]
