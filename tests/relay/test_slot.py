"""Slots are chosen, made, mended and told apart, as the role oncommit_relay."""

import time

import psycopg
import pytest

from db.errors import Unavailable
from db.migrate import migrate
from relay import birth, publication, slot
from relay.errors import (
    PluginForbidden,
    PluginMissing,
    ReplicationRefused,
    ServerAway,
    SlotBusy,
    SlotCreationBlocked,
    SlotForeign,
    SlotInvalidated,
    SlotMissing,
    SlotWrongPlugin,
)
from relay.events import PluginName
from support.postgres import Database, Server
from support.server_setting import setting
from support.waiting import eventually
from support.wal import PUBLICATION, Reader

WRITE = "INSERT INTO control (lane, who) VALUES ('a', 'test')"


def lose_slot(server: Server, name: str) -> None:
    """Write beyond max_slot_wal_keep_size until the server gives the slot up."""
    with server.connect() as admin:

        def lost() -> bool:
            admin.execute("SELECT pg_logical_emit_message(false, 'fill', 'x'), pg_switch_wal()")
            admin.execute("CHECKPOINT")
            status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
            return admin.execute(status, [name]).fetchone() == ("lost",)

        eventually(lost)


def test_the_best_plugin_is_chosen_and_leaves_nothing_behind(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    assert slot.choose_decoder(relay_conn, "auto") == database.server.decoder
    assert slot.choose_decoder(relay_conn, "pgoutput") == "pgoutput"
    left = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'oncommit_probe%'"
    assert database.admin.execute(left).fetchone() == (0,)


def test_an_open_write_transaction_does_not_hide_which_plugins_there_are(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    with database.connect() as writer:
        writer.execute(WRITE)
        assert slot.choose_decoder(relay_conn, "auto") == database.server.decoder
        refused = birth.probe(relay_conn, "no_such_plugin", 0.3)  # type: ignore[arg-type]
        assert isinstance(refused, (PluginForbidden, PluginMissing))


def test_a_plugin_that_is_not_allowed_says_what_to_set(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    with setting(database.server, "output_plugin_libraries", "pgoutput"):
        assert slot.choose_decoder(relay_conn, "auto") == "pgoutput"
        with pytest.raises(PluginForbidden, match="SET output_plugin_libraries = pgoutput, wal2json;"):
            slot.choose_decoder(relay_conn, "wal2json")


def test_a_plugin_that_is_missing_says_what_to_install(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    with setting(database.server, "output_plugin_libraries", "pgoutput, wal2jsonn"):
        refused = birth.probe(relay_conn, "wal2jsonn", 1)  # type: ignore[arg-type]
        assert isinstance(refused, PluginMissing)
        assert "postgresql-NN-wal2jsonn" in str(refused)


def test_a_plugin_that_was_forbidden_later_ends_in_the_same_advice(unopened: Reader) -> None:
    advice = f"SET output_plugin_libraries = .*{unopened.plugin};"
    with (
        setting(unopened.database.server, "output_plugin_libraries", "test_decoding"),
        pytest.raises(PluginForbidden, match=advice),
    ):
        unopened.open()


def test_a_slot_is_made_once(database: Database, relay_conn: psycopg.Connection) -> None:
    plugin = slot.choose_decoder(relay_conn, "auto")
    assert not slot.slot_state(relay_conn, database.slot).exists
    assert slot.ensure_slot(relay_conn, database.slot, plugin, timeout=10) is slot.Ensured.CREATED
    assert slot.ensure_slot(relay_conn, database.slot, plugin, timeout=10) is slot.Ensured.EXISTING
    assert not birth.make_slot(relay_conn, database.slot, plugin, 10)
    state = slot.slot_state(relay_conn, database.slot)
    assert (state.exists, state.here, state.plugin, state.active_pid) == (True, True, plugin, None)
    assert state.wal_status == "reserved"
    assert state.lag_bytes is not None
    assert state.retained_bytes is not None
    assert 0 <= state.lag_bytes <= state.retained_bytes


def test_an_open_write_transaction_blocks_creation_for_a_bounded_time_and_leaves_nothing(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    with database.connect() as writer:
        writer.execute(WRITE)
        started = time.monotonic()
        with pytest.raises(SlotCreationBlocked, match="xact_start"):
            slot.ensure_slot(relay_conn, database.slot, "pgoutput", timeout=0.5)
        assert 0.4 < time.monotonic() - started < 5
        assert not slot.slot_state(relay_conn, database.slot).exists
    assert relay_conn.execute("SHOW statement_timeout").fetchone() == ("0",)
    assert slot.ensure_slot(relay_conn, database.slot, "pgoutput", timeout=10) == "created"


def test_a_slot_of_the_other_plugin_is_made_again_unless_it_is_read(
    reader: Reader, relay_conn: psycopg.Connection
) -> None:
    other: PluginName = "pgoutput" if reader.plugin == "wal2json" else "wal2json"
    name = reader.database.slot
    with pytest.raises(SlotBusy):
        slot.ensure_slot(relay_conn, name, other)
    reader.stream.close()
    eventually(lambda: slot.slot_state(relay_conn, name).active_pid is None)
    with pytest.raises(SlotWrongPlugin):
        Reader(reader.database, other).open()
    if other == "wal2json" and not reader.database.server.has_wal2json:
        with pytest.raises(PluginForbidden):
            slot.ensure_slot(relay_conn, name, other)
        return
    assert slot.ensure_slot(relay_conn, name, other, timeout=10) == "wrong_plugin"
    assert slot.slot_state(relay_conn, name).plugin == other


def test_a_busy_slot_names_its_holder_and_a_missing_one_is_missing(
    reader: Reader, relay_conn: psycopg.Connection
) -> None:
    name, pid = reader.database.slot, reader.stream.pid
    assert slot.owns_slot(relay_conn, name, pid)
    assert not slot.owns_slot(relay_conn, name, pid + 1)
    with pytest.raises(SlotBusy, match=str(pid)):
        Reader(reader.database, reader.plugin).open()
    with pytest.raises(SlotBusy):
        slot.drop_slot(relay_conn, name)
    reader.stream.close()
    eventually(lambda: not slot.owns_slot(relay_conn, name, pid))
    slot.drop_slot(relay_conn, name)
    slot.drop_slot(relay_conn, name)
    with pytest.raises(SlotMissing):
        reader.open()


def test_another_databases_slot_is_left_alone(database: Database, relay_conn: psycopg.Connection) -> None:
    reader = Reader(database, "pgoutput")
    with psycopg.connect(database.server.dsn("postgres"), autocommit=True) as elsewhere:
        elsewhere.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.slot])
        try:
            with pytest.raises(SlotForeign, match="ONCOMMIT_SLOT"):
                slot.ensure_slot(relay_conn, database.slot, "pgoutput")
            with pytest.raises(SlotForeign, match="ONCOMMIT_SLOT"):
                reader.open()
        finally:
            elsewhere.execute("SELECT pg_drop_replication_slot(%s)", [database.slot])


def test_a_lost_slot_is_seen_and_made_again(reader: Reader, relay_conn: psycopg.Connection) -> None:
    database = reader.database
    with setting(database.server, "max_slot_wal_keep_size", "1"):
        reader.database.admin.execute(WRITE)
        lose_slot(database.server, database.slot)
        with pytest.raises(ServerAway):
            reader.until(lambda _: False)
        assert slot.slot_state(relay_conn, database.slot).lost
        with pytest.raises(SlotInvalidated):
            reader.open()
        assert slot.ensure_slot(relay_conn, database.slot, reader.plugin, timeout=10) == "lost"
    reader.open()
    reader.database.admin.execute(WRITE)
    assert len(reader.rows(1)) == 1


def test_a_role_without_replication_is_told_so(database: Database) -> None:
    with psycopg.connect(database.dsn("worker"), autocommit=True) as conn:
        with pytest.raises(ReplicationRefused, match="REPLICATION"):
            slot.ensure_slot(conn, database.slot, "pgoutput")
        with pytest.raises(ReplicationRefused, match="REPLICATION"):
            slot.choose_decoder(conn, "auto")


def test_a_database_that_is_gone_is_unavailable(database: Database, relay_conn: psycopg.Connection) -> None:
    database.admin.execute("SELECT pg_terminate_backend(%s, 5000)", [relay_conn.info.backend_pid])
    with pytest.raises(Unavailable):
        slot.slot_state(relay_conn, database.slot)
    with pytest.raises(Unavailable):
        slot.ensure_slot(relay_conn, database.slot, "pgoutput")


def test_a_publication_that_would_skip_rows_is_not_ok(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    assert publication.passes_all(relay_conn, PUBLICATION)
    assert not publication.passes_all(relay_conn, "nobody")
    for damage in (
        b"DROP PUBLICATION oncommit_outbox",
        b"DROP TABLE outbox CASCADE",
        b"ALTER PUBLICATION oncommit_outbox DROP TABLE control",
        b"ALTER PUBLICATION oncommit_outbox SET (publish = 'update')",
        b"ALTER PUBLICATION oncommit_outbox SET TABLE outbox WHERE (priority > 5), control",
        b"ALTER PUBLICATION oncommit_outbox SET TABLE outbox (id, body), control",
    ):
        with database.admin.transaction(force_rollback=True):
            database.admin.execute(damage)
            assert not publication.passes_all(database.admin, PUBLICATION), damage
    assert publication.passes_all(relay_conn, PUBLICATION)


def test_a_slot_that_stands_before_its_publication_is_made_again(
    database: Database, relay_conn: psycopg.Connection
) -> None:
    def ensure() -> slot.Ensured:
        return slot.ensure_slot(
            relay_conn, database.slot, "pgoutput", timeout=10, publication="oncommit_outbox"
        )

    assert ensure() == "created"
    assert ensure() == "existing"
    database.admin.execute("DROP PUBLICATION oncommit_outbox")
    database.admin.execute("INSERT INTO control (lane, who) VALUES ('unseen', 'test')")
    migrate(database.dsn())
    # The row was written without a publication: with this slot every stream would end at it.
    assert ensure() == "before_publication"
    assert ensure() == "existing"
    reader = Reader(database, "pgoutput")
    reader.open()
    assert reader.mark() == []
    reader.stream.close()


def test_both_connections_see_one_identity(reader: Reader, relay_conn: psycopg.Connection) -> None:
    life = slot.identity(relay_conn)
    assert life == reader.stream.identity
    assert life.database == reader.database.name
    assert life.timeline == 1
