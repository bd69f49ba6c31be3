"""Two relays, one slot: one publishes, the other stands by, and they never depose each other in turn."""

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from support.postgres import Database
from support.processes import Processes, Running
from support.waiting import always, eventually

from .test_relay import accept, admin, expected, in_redis

__all__ = ["admin", "in_redis"]

#: A relay that can have no stream: what it is told to read is not published.
POLLING = {"ONCOMMIT_DECODER": "pgoutput", "ONCOMMIT_PUBLICATION": "nobody"}
READERS = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active"


def reigns(*relays: Running) -> int:
    return sum(relay.log_text().count("relay.reigns") for relay in relays)


def role(relay: Running) -> str:
    """Return what a relay says it is; nothing while it starts."""
    with suppress(OSError):
        page = relay.page("/readyz")
        return next((r for r in ("standby", "polling", "relay") if f'"role":"{r}"' in page), "")
    return ""


@pytest.mark.parametrize("polls_first", [True, False])
def test_a_polling_relay_and_a_streaming_one_do_not_depose_each_other(
    admin: psycopg.Connection, processes: Processes, in_redis: Any, polls_first: bool
) -> None:
    def start(**env: str) -> Running:
        relay = processes.relay(ready=False, **env)
        eventually(lambda: role(relay) and (reigns(relay) or role(relay) == "standby"))
        return relay

    if polls_first:
        polling, streaming = start(**POLLING), start()
        eventually(lambda: role(polling) == "standby", describe="the one that polled stands by")
    else:
        streaming, polling = start(), start(**POLLING)
    # Each seized Redis once: two that take the slot for theirs outbid each other's epochs, again and again.
    before = (int(polls_first), 1)
    assert (reigns(polling), reigns(streaming)) == before
    [job] = accept(admin)
    eventually(lambda: f"acme|{job}.1" in in_redis())
    always(lambda: (role(polling), role(streaming)) == ("standby", "relay"), during=2.0)
    assert (reigns(polling), reigns(streaming)) == before
    streaming.kill()
    accept(admin)
    eventually(lambda: in_redis() == expected(admin), timeout=15, describe="polled, once nobody streams")
    assert role(polling) == "polling"


def test_of_two_that_can_only_poll_one_does(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    first = processes.relay(ready=False, **POLLING)
    eventually(lambda: reigns(first) == 1)
    second = processes.relay(ready=False, **POLLING)
    eventually(lambda: role(second) == "standby")
    accept(admin)
    eventually(lambda: in_redis() == expected(admin))
    first.kill()
    accept(admin)
    eventually(lambda: in_redis() == expected(admin), timeout=10)
    assert (reigns(first), role(second)) == (1, "polling")


def test_the_second_relay_takes_over_from_a_frozen_one_which_then_publishes_nothing(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any
) -> None:
    first = processes.relay()
    second = processes.relay(ready=False)
    eventually(lambda: role(second) == "standby")
    first.freeze()
    eventually(lambda: role(second) == "relay", timeout=40, describe="it waited for wal_sender_timeout")
    accept(admin, 5)
    eventually(lambda: in_redis() == expected(admin))
    before = reigns(second)
    first.thaw()
    eventually(lambda: role(first) == "standby", describe="the one that woke stands by")
    accept(admin, 5)
    eventually(lambda: in_redis() == expected(admin))
    assert (reigns(first), reigns(second)) == (1, before)
    assert admin.execute(READERS, [database.slot]).fetchone() == (1,)
