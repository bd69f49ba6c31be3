"""Both decoders say what PostgreSQL says; other changes, odd rows and noise do not stop them."""

import json
import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.errors import DecodeError
from relay.events import Begin, Commit, ControlRow, Event, OutboxRow, PluginName, Poison, lsn_int, lsn_text
from relay.pgoutput import PgOutput
from relay.rows import UNREADABLE, control_row, outbox_row
from relay.slot import new_decoder
from relay.wal2json import Wal2Json
from support.postgres import Database
from support.wal import Reader

BIGINT = 2**63 - 1
OUTBOX = """
INSERT INTO outbox (id, message_id, queue, lane, priority, not_before, body)
OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
CONTROL = """
INSERT INTO control (version, lane, max_running, weight, rate_per_second, burst, paused, who)
OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, %s, %s, %s, %s, 'test')
"""

# PostgreSQL's text has no NUL; lone surrogates are no text at all.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
lanes = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
instants = st.datetimes(
    # datetime.min in a zone east of Greenwich is a year that Python has no name for.
    min_value=datetime(2, 1, 1),  # noqa: DTZ001 -- the zone is drawn below
    max_value=datetime(9998, 12, 31),  # noqa: DTZ001
    timezones=st.integers(-15 * 60, 15 * 60).map(lambda m: timezone(timedelta(minutes=m))),
)
bodies = texts.filter(lambda text: 2 <= len(text.encode()) <= 4096)


@st.composite
def outbox_rows(draw: st.DrawFn) -> OutboxRow:
    lane = draw(lanes)
    return OutboxRow(
        intent=draw(st.integers(1, BIGINT)),
        message_id=f"{lane}|{draw(texts)}"[:190] + f"{draw(st.uuids()).hex[:8]}",
        queue="previews",
        lane=lane,
        priority=draw(st.integers(0, 9)),
        not_before=draw(st.none() | instants),
        body=draw(bodies),
    )


control_rows = st.builds(
    ControlRow,
    version=st.integers(2, BIGINT),
    lane=lanes | st.just("*"),
    max_running=st.none() | st.integers(1, 100_000),
    weight=st.integers(1, 100),
    rate_per_second=st.none() | st.floats(1e-6, 1e6),
    burst=st.integers(1, 1_000_000),
    paused=st.booleans(),
)
batches = st.lists(outbox_rows(), max_size=8, unique_by=(lambda r: r.intent, lambda r: r.message_id))
settings_rows = st.lists(control_rows, max_size=4, unique_by=lambda r: r.version)


def insert(conn: psycopg.Connection[Any], row: OutboxRow | ControlRow) -> None:
    if isinstance(row, OutboxRow):
        values = (row.intent, row.message_id, row.queue, row.lane, row.priority, row.not_before, row.body)
        conn.execute(OUTBOX, values)
    else:
        conn.execute(
            CONTROL,
            (row.version, row.lane, row.max_running, row.weight, row.rate_per_second, row.burst, row.paused),
        )


def untold(events: list[Event]) -> list[Event]:
    """Return them without the time of their commit, which the tests do not choose."""
    return [e._replace(created_at=None) if isinstance(e, OutboxRow) else e for e in events]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outbox=batches, control=settings_rows)
def test_what_was_inserted_is_what_is_read(
    reader: Reader, outbox: list[OutboxRow], control: list[ControlRow]
) -> None:
    admin = reader.database.admin
    admin.execute("TRUNCATE outbox, control")
    rows = [*outbox, *control]
    with admin.transaction():
        for row in rows:
            insert(admin, row)
    assert untold(reader.rows(len(rows))) == rows if rows else reader.mark() == []


def test_a_transaction_is_framed_by_its_ids(reader: Reader) -> None:
    admin = reader.database.admin
    with admin.transaction():
        (xid,) = admin.execute("SELECT pg_current_xact_id()::xid::text::bigint").fetchone() or ()
        admin.execute("INSERT INTO control (lane, who) VALUES ('a', 'test')")
    (after,) = admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ()
    begin, row, commit = reader.until(lambda events: len(events) >= 3)
    assert isinstance(begin, Begin)
    assert isinstance(row, ControlRow)
    assert isinstance(commit, Commit)
    assert begin.xid == xid
    assert begin.final_lsn == commit.commit_lsn
    assert commit.commit_lsn is not None
    assert commit.commit_lsn < commit.end_lsn <= lsn_int(after)


def test_changes_that_are_no_inserts_dispatch_nothing(reader: Reader) -> None:
    admin = reader.database.admin
    admin.execute("CREATE TABLE big (id int PRIMARY KEY, status text, payload text)")
    admin.execute("ALTER TABLE big ALTER payload SET STORAGE EXTERNAL")
    admin.execute("INSERT INTO big VALUES (1, 'new', repeat('x', 200000))")
    admin.execute("UPDATE big SET status = 'old'")
    insert(admin, OutboxRow(1, "a|1", "previews", "a", 3, None, "{}"))
    assert len(reader.rows(1)) == 1
    admin.execute("UPDATE outbox SET priority = 4")
    admin.execute("DELETE FROM outbox")
    admin.execute("TRUNCATE outbox")
    admin.execute("SELECT pg_logical_emit_message(true, 'outbox', 'not a row')")
    with admin.transaction(force_rollback=True):
        insert(admin, OutboxRow(2, "a|2", "previews", "a", 3, None, "{}"))
    with admin.transaction():
        with admin.transaction(force_rollback=True):
            insert(admin, OutboxRow(3, "a|3", "previews", "a", 3, None, "{}"))
        admin.execute("DELETE FROM control WHERE false")
    assert reader.mark() == []


def test_columns_may_be_added_moved_and_dropped(reader: Reader) -> None:
    admin = reader.database.admin
    insert(admin, OutboxRow(1, "a|1", "previews", "a", 3, None, "{}"))
    admin.execute("ALTER TABLE outbox ADD note text DEFAULT 'x', ADD n numeric DEFAULT 1e400, ADD j jsonb")
    admin.execute("""UPDATE outbox SET j = '{"deep": [1e131000]}'""")
    admin.execute("ALTER TABLE outbox ALTER j SET DEFAULT '{\"deep\": [1e1000]}'")
    insert(admin, OutboxRow(BIGINT, "a|2", "previews", "a", 3, None, '{"n":9007199254740993}'))
    with admin.transaction():
        # Priority moves to the end of the table, and its place stays empty.
        admin.execute("ALTER TABLE outbox DROP note, DROP priority")
        admin.execute("ALTER TABLE outbox ADD priority smallint NOT NULL DEFAULT 7")
    insert(admin, OutboxRow(3, "a|3", "previews", "a", 0, None, "{}"))
    assert reader.rows(3) == [
        OutboxRow(1, "a|1", "previews", "a", 3, None, "{}"),
        OutboxRow(BIGINT, "a|2", "previews", "a", 3, None, '{"n":9007199254740993}'),
        OutboxRow(3, "a|3", "previews", "a", 0, None, "{}"),
    ]


def test_rows_of_another_hand_are_poison_and_the_next_one_goes_on(reader: Reader) -> None:
    admin = reader.database.admin
    admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_body_check, ALTER body DROP NOT NULL")
    admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_priority_check, ALTER lane DROP NOT NULL")
    admin.execute("ALTER TABLE outbox DROP CONSTRAINT message_id_names_lane")
    admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_not_before_check")
    put = "INSERT INTO outbox (message_id, queue, lane, priority, not_before, body) VALUES "
    admin.execute(put + "('a|1', 'previews', 'a', 3, NULL, NULL)")
    admin.execute(put + "('a|2', 'previews', 'a', 3, NULL, repeat('x', 4097))")
    admin.execute(put + "('a|3', 'previews', 'a', 10, NULL, '{}')")
    admin.execute(put + "('a|4', 'previews', NULL, 3, NULL, '{}')")
    admin.execute(put + "('b|5', 'previews', 'a', 3, NULL, '{}')")
    admin.execute(put + "('a|6', 'previews', 'a', 3, 'infinity', '{}')")
    admin.execute(put + "('a|7', 'previews', 'a', 3, '0044-03-15 00:00:00+00 BC', '{}')")
    admin.execute(put + "('a|8', 'previews', 'a', 3, NULL, '{}')")
    *poison, good = reader.rows(8)
    assert [p.message_id for p in poison if isinstance(p, Poison)] == [
        f"{'b' if n == 5 else 'a'}|{n}" for n in range(1, 8)
    ]
    assert [p.intent for p in poison if isinstance(p, Poison)] == list(range(1, 8))
    columns = [p.reason.split(":")[0] for p in poison if isinstance(p, Poison)]
    assert columns == ["body", "body", "priority", "lane", "message_id", "not_before", "not_before"]
    assert good == OutboxRow(8, "a|8", "previews", "a", 3, None, "{}")


def test_a_dropped_column_is_poison_that_names_it(reader: Reader) -> None:
    reader.database.admin.execute("ALTER TABLE control DROP burst CASCADE")
    reader.database.admin.execute("INSERT INTO control (lane, who) VALUES ('a', 'test')")
    assert reader.rows(1) == [Poison("control", None, None, "burst: the table has no such column")]


def test_odd_session_settings_of_the_role_change_nothing(unopened: Reader) -> None:
    database = unopened.database
    for setting in ("DateStyle = 'German'", "TimeZone = 'Asia/Kathmandu'", "extra_float_digits = -15"):
        database.admin.execute(f"ALTER ROLE oncommit_relay IN DATABASE {database.name} SET {setting}")
    unopened.open()
    row = OutboxRow(1, "a|1", "previews", "a", 3, datetime(2031, 12, 1, 2, 3, 4, 56, UTC), "{}")
    limits = ControlRow(9, "a", None, 1, 0.1 + 0.2, 1, paused=True)
    insert(database.admin, row)
    insert(database.admin, limits)
    assert untold(unopened.rows(2)) == [row, limits]


@pytest.mark.parametrize("plugin_name", ["wal2json", "pgoutput"])
@settings(deadline=None)
@given(noise=st.binary(max_size=200), kind=st.sampled_from(b'\0BCRIUDTYOM{["'))
def test_noise_is_refused_and_never_crashes(plugin_name: PluginName, noise: bytes, kind: int) -> None:
    decoder = new_decoder(plugin_name)
    for payload in (noise, bytes([kind]) + noise):
        with suppress(DecodeError):
            decoder.feed(memoryview(payload), 0)


RELATION = (
    b"R" + struct.pack("!I", 7) + b"public\0outbox\0d" + struct.pack("!h", 2)
    + b"\1id\0" + bytes(8) + b"\0message_id\0" + bytes(8)
)  # fmt: skip
INSERT = b"I" + struct.pack("!I", 7) + b"N" + struct.pack("!h", 2) + b"t\0\0\0\0011" + b"t\0\0\0\3a|1"


@settings(deadline=None)
@given(cut=st.integers(1, max(len(RELATION), len(INSERT)) - 1))
def test_a_message_that_is_cut_short_is_refused(cut: int) -> None:
    for whole in (RELATION, INSERT):
        decoder = PgOutput()
        decoder.feed(RELATION, 0)
        if cut < len(whole):
            with pytest.raises(DecodeError):
                decoder.feed(whole[:cut], 0)


@settings(deadline=None)
@given(at=st.integers(0, len(INSERT) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_another_row(at: int, byte: int) -> None:
    decoder = PgOutput()
    decoder.feed(RELATION, 0)
    changed = INSERT[:at] + bytes([byte]) + INSERT[at + 1 :]
    with suppress(DecodeError):
        decoder.feed(changed, 0)


def test_unchanged_toast_and_binary_values_are_poison() -> None:
    decoder = PgOutput()
    decoder.feed(RELATION, 0)
    for value in (b"u", b"b\0\0\0\3a|1"):
        (event,) = decoder.feed(INSERT[:-8] + value, 0)
        assert isinstance(event, Poison)
        assert event.intent == 1
    assert isinstance(outbox_row({"lane": UNREADABLE}), Poison)


def test_an_insert_into_a_table_that_was_never_announced_is_refused() -> None:
    with pytest.raises(DecodeError):
        PgOutput().feed(INSERT, 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(
    record=st.fixed_dictionaries(
        {"action": st.sampled_from(["B", "I", "C", "U", "T", "M"])},
        optional={
            "xid": json_values, "lsn": json_values | st.just("0/1"), "nextlsn": json_values | st.just("0/1"),
            "schema": st.just("public") | json_values, "table": st.just("outbox") | json_values,
            "columns": json_values
            | st.lists(st.fixed_dictionaries({"name": json_values, "value": json_values})),
        },
    )
)  # fmt: skip
def test_json_of_another_shape_is_refused_or_poison(record: dict[str, object]) -> None:
    try:
        events = Wal2Json().feed(json.dumps(record).encode(), 1)
    except DecodeError:
        return
    assert len(events) <= 1


def test_deep_json_is_refused() -> None:
    with pytest.raises(DecodeError):
        Wal2Json().feed(b'{"action":' + b"[" * 200_000, 0)


@pytest.mark.parametrize("plugin_name", ["wal2json", "pgoutput"])
def test_a_commit_beyond_what_was_sent_is_refused(plugin_name: PluginName) -> None:
    commit = {
        "wal2json": b'{"action":"C","xid":1,"lsn":"0/10","nextlsn":"0/20"}',
        "pgoutput": b"C\0" + struct.pack("!QQq", 0x10, 0x20, 0),
    }[plugin_name]
    assert new_decoder(plugin_name).feed(commit, 0x20) == (Commit(0x20, 0x10),)
    with pytest.raises(DecodeError):
        new_decoder(plugin_name).feed(commit, 0x1F)


@given(
    st.dictionaries(
        st.sampled_from(sorted({"id", "message_id", "queue", "lane", "priority", "body"})), json_values
    )
)
def test_a_row_of_any_values_is_a_row_or_poison(columns: dict[str, object]) -> None:
    assert isinstance(outbox_row(columns), (OutboxRow, Poison))
    assert isinstance(control_row(columns), Poison)


@pytest.mark.parametrize("value", [True, 1.0, "1_000", " 1", "\u0661", "", "1e3", str(2**63), None])
def test_what_is_no_bigint_is_no_id(value: object) -> None:
    columns = {"id": value, "message_id": "a|1", "queue": "q", "lane": "a", "priority": 1, "not_before": None}
    row = outbox_row({**columns, "body": "{}"})
    assert isinstance(row, Poison)
    assert row.reason == f"id: no integer from 1 to {BIGINT}"


@given(st.integers(0, 2**64 - 1))
def test_positions_survive_their_text(lsn: int) -> None:
    assert lsn_int(lsn_text(lsn)) == lsn


@pytest.mark.parametrize("text", ["", "1", "/", "1/", "g/0", "-1/0", "1/1_0", "0x1/0", " 1/0", "123456789/0"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the type is the contract
        lsn_int(text)


def test_the_database_writes_positions_as_we_do(database: Database) -> None:
    for lsn in (1, 0xFFFFFFFF, 0x1_0000_0000, 0x16_B374_D848):
        assert database.admin.execute("SELECT %s::pg_lsn::text", [lsn_text(lsn)]).fetchone() == (
            lsn_text(lsn),
        )
