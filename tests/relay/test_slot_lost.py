"""A slot lost in any way: a loud line, a count, a new slot, a resync; nothing is lost."""

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from support.postgres import Database
from support.processes import Processes, Running
from support.proxy import Proxy
from support.server_setting import setting
from support.waiting import eventually

from .test_relay import TERMINATE, accept, admin, expected, in_redis
from .test_slot import lose_slot

__all__ = ["admin", "in_redis"]

DROP = "SELECT pg_drop_replication_slot(%s)"
MAKE = "SELECT pg_create_logical_replication_slot(%s, %s)"
ADVANCE = "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
PLUGIN = "SELECT plugin FROM pg_replication_slots WHERE slot_name = %s"


def dropped(admin: psycopg.Connection, database: Database) -> None:
    admin.execute(DROP, [database.slot])


def remade(admin: psycopg.Connection, database: Database) -> None:
    row = admin.execute(PLUGIN, [database.slot]).fetchone()
    assert row is not None
    admin.execute(DROP, [database.slot])
    accept(admin, 5)
    admin.execute(MAKE, [database.slot, row[0]])


def advanced(admin: psycopg.Connection, database: Database) -> None:
    accept(admin, 5)
    admin.execute(ADVANCE, [database.slot])


def invalidated(admin: psycopg.Connection, database: Database) -> None:
    del admin
    lose_slot(database.server, database.slot)


def made(relay: Running) -> dict[str, float]:
    """Return what the relay counts of slots, by why."""
    found = re.findall(
        r'^relay_slots_made_total\{why="(\w+)"\} ([0-9.]+)', relay.page("/metrics"), re.MULTILINE
    )
    return {why: float(count) for why, count in found}


#: What happens to the slot, what the count's `why` is then, and the line in the log.
LOSSES: dict[str, tuple[Callable[[psycopg.Connection, Database], None], str, str]] = {
    "dropped": (dropped, "created", "relay.new_slot"),
    "remade": (remade, "remade", "relay.slot_remade"),
    "advanced": (advanced, "remade", "relay.slot_remade"),
    "invalidated": (invalidated, "lost", "relay.new_slot"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_slot_that_is_lost_is_told_counted_and_made_again(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any, loss: str
) -> None:
    harm, why, line = LOSSES[loss]
    relay = processes.relay()
    accept(admin, 5)
    eventually(lambda: in_redis() == expected(admin), describe="the first five")
    before = made(relay).get(why, 0.0)
    lines = relay.log_text().count(line)
    relay.freeze()
    with setting(database.server, "max_slot_wal_keep_size", "1" if loss == "invalidated" else "-1"):
        if loss != "invalidated":
            admin.execute(TERMINATE, [database.slot])
        harm(admin, database)
        accept(admin, 5)
        relay.thaw()
        eventually(lambda: in_redis() == expected(admin), timeout=30, describe="all of them")
    eventually(lambda: made(relay).get(why, 0.0) == before + 1, describe=lambda: str(made(relay)))
    told = [found for found in relay.log_lines() if found.get("event") == line]
    assert len(told) == lines + 1
    assert told[-1]["level"] in {"warning", "error"}


def test_a_relay_that_comes_back_to_its_own_slot_tells_of_no_other_hand(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any
) -> None:
    relays = [processes.relay(), processes.relay()]
    for _ in range(3):  # with much WAL of others to confirm, and the two taking turns
        accept(admin, 5)
        eventually(lambda: in_redis() == expected(admin), timeout=30)
        database.admin.execute("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 3000000))")
        attached = sum(relay.log_text().count("relay.attached") for relay in relays)
        admin.execute(TERMINATE, [database.slot])
        eventually(
            lambda attached=attached: sum(r.log_text().count("relay.attached") for r in relays) > attached,
            timeout=30,
        )
    assert [made(relay).get("remade", 0.0) for relay in relays] == [0.0, 0.0]


def test_a_slot_made_again_is_told_once_and_not_at_each_try_to_read_it(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any
) -> None:
    """While the stream is refused the relay looks at the slot at each try, and once more when it has one."""
    with Proxy(database.server.port) as link:
        relay = processes.relay(ONCOMMIT_REPLICATION_URL=database.url("relay", port=link.port))
        accept(admin, 5)
        eventually(lambda: in_redis() == expected(admin), describe="the first five")
        relay.freeze()
        link.cut()
        admin.execute(TERMINATE, [database.slot])
        for times in (1, 2):  # also by a second hand, while nothing is read
            remade(admin, database)
            relay.thaw()
            eventually(lambda times=times: made(relay).get("remade") == times, timeout=30)
            relay.freeze()
        link.restore()
        relay.thaw()
        eventually(lambda: relay.log_text().count("relay.attached") == 2, timeout=30)
        eventually(lambda: in_redis() == expected(admin), timeout=30, describe="all of them")
    assert made(relay)["remade"] == 2
    assert relay.log_text().count("relay.slot_remade") == 2
