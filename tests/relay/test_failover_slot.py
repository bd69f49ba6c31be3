"""A slot that PostgreSQL 17 or later keeps on its standbys: docs/scale.md says to make it beforehand."""

import pytest

from support.desk import Desk, desk
from support.postgres import Database
from support.processes import Processes
from support.waiting import eventually

__all__ = ["desk"]

MAKE = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)"
STATE = "SELECT failover, active FROM pg_replication_slots WHERE slot_name = %s"


@pytest.mark.parametrize("session_server", ["embedded"], indirect=True)
def test_a_slot_made_for_failover_is_taken_as_it_is(
    desk: Desk, database: Database, processes: Processes
) -> None:
    assert database.admin.info.server_version >= 170_000
    database.admin.execute(MAKE, [database.slot])
    processes.relay(ONCOMMIT_DECODER="pgoutput")
    desk.accept(3)
    eventually(lambda: processes.valkey.client.hlen("oncommit:previews:messages") == 3)
    assert database.admin.execute(STATE, [database.slot]).fetchone() == (True, True)
