"""The doctor's checks of the stream: may wal2json be used, does the publication pass, how is the slot."""

from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from db import catalog
from db.catalog import Server, Slot
from ops import show
from ops.diagnosis import MIGRATE, Finding, Level, fail, ok, skip, warn
from runtime.settings import Settings

TABLES = frozenset({"outbox", "control"})
#: The relay confirms within a second: that much unconfirmed means that it does not keep up or not run.
LAG_BYTES = 64_000_000
#: Follows at checkpoints, so a few segments of 16 MB are nothing.
RETAINED_BYTES = 1_000_000_000
ALLOW = (
    "for wal2json set output_plugin_libraries = pgoutput, wal2json (an unquoted list) and reload; "
    "or set ONCOMMIT_DECODER=pgoutput"
)
POLLS = "see why it has no stream: its /readyz says it, and its log (relay.no_stream)"
INSTALL = "install it (Debian: postgresql-NN-wal2json), or set ONCOMMIT_DECODER=pgoutput"


def plugin_checks(conn: Connection[Any], server: Server, settings: Settings) -> Iterator[Finding]:
    """Judge whether the output plugin that is wished for can be used."""
    wish = settings.decoder
    if wish == "pgoutput":
        yield ok("decoder", "pgoutput, which is in every server")
        return
    if server.wal_level != "logical":
        yield skip("decoder", "not without wal_level = logical")
        return
    if not server.may_replicate:
        yield skip(
            "decoder",
            f"{server.role} may not replicate",
            "run the doctor with the relay's or a superuser's URL too",
        )
        return
    refusal = catalog.plugin_refusal(conn, "wal2json")
    if refusal is None:
        yield ok("decoder", "wal2json is installed and allowed")
    elif refusal.startswith("refused"):
        yield fail("decoder", refusal, "see the server's log")
    elif wish == "wal2json":
        yield fail("decoder", f"wal2json is {refusal}", INSTALL if refusal == "missing" else ALLOW)
    elif refusal == "forbidden":
        yield Finding("decoder", Level.OK, "wal2json is not allowed: pgoutput is used", ALLOW)
    else:
        yield ok("decoder", "wal2json is not installed: pgoutput is used")


def publication_checks(conn: Connection[Any], settings: Settings) -> Iterator[Finding]:
    """Judge the publication: PostgreSQL 18 skips rows in silence when it is not whole."""
    name = settings.publication
    if missing := sorted(TABLES - catalog.published(conn, name)):
        yield fail("publication", f"{name} does not pass every insert into {', '.join(missing)}", MIGRATE)
    else:
        yield ok("publication", f"{name} passes inserts into {' and '.join(sorted(TABLES))}")


def slot_checks(conn: Connection[Any], settings: Settings) -> Iterator[Finding]:
    """Judge the relay's slot."""
    yield judge_slot(conn, settings.slot, catalog.slot(conn, settings.slot))


def judge_slot(conn: Connection[Any], name: str, slot: Slot | None) -> Finding:
    """Judge the slot of that name, which was looked at just now."""
    if (slot is None or (slot.here and not slot.active)) and catalog.polled(conn, name):
        state = f"{name} does not exist" if slot is None else _state(name, slot)
        return warn("slot", f"{state}; NOT READ: a relay runs, and polls the table meanwhile", POLLS)
    if slot is None:
        return warn("slot", f"{name} does not exist", "start the relay, which makes it: python -m relay")
    if not slot.here:
        return fail(
            "slot",
            f"{name} belongs to another database of this cluster",
            "set ONCOMMIT_SLOT to a name of its own",
        )
    return _judge(name, slot)


def _state(name: str, slot: Slot) -> str:
    return (
        f"{name} ({slot.plugin}, {slot.wal_status}): {show.size(slot.lag_bytes)} not confirmed, "
        f"{show.size(slot.retained_bytes)} kept on disk"
    )


def _judge(name: str, slot: Slot) -> Finding:
    state = _state(name, slot)
    if slot.wal_status == "lost":
        return fail(
            "slot", state, "start the relay: it makes a new one and catches up from the table, losing no job"
        )
    if not slot.active:
        return warn("slot", f"{state}; NOT READ", "start the relay: python -m relay")
    if (slot.lag_bytes or 0) > LAG_BYTES:
        return warn("slot", state, "see the relay's log: it does not keep up with the WAL")
    if (slot.retained_bytes or 0) > RETAINED_BYTES:
        return warn(
            "slot",
            state,
            "look for long transactions in pg_stat_activity; what is kept follows at checkpoints",
        )
    return ok("slot", state)
