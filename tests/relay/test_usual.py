"""A usual row means what reading with care makes of it, whatever its columns hold, whichever byte is off."""

import json
import struct
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from relay import usual
from relay.errors import DecodeError
from relay.events import Decoder, Event, OutboxRow
from relay.pgoutput import PgOutput
from relay.rows import outbox_row
from relay.wal2json import Wal2Json

NAMES = ("id", "message_id", "queue", "lane", "priority", "not_before", "body", "created_at")
OID = 16_654
CREATED = "2026-11-30 10:19:43.044964+00"
GOOD: dict[str, str | None] = {
    "id": "516", "message_id": "acme|3c146f2c.1", "queue": "previews", "lane": "acme", "priority": "5",
    "not_before": None, "body": '{"args":["\u00e9\\"",1]}', "created_at": CREATED,
}  # fmt: skip
RELATION = (
    b"R" + struct.pack("!I", OID) + b"public\0outbox\0d" + struct.pack("!h", len(NAMES))
    + b"".join(b"\0" + name.encode() + b"\0" + bytes(8) for name in NAMES)
)  # fmt: skip

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300)
# Each column at its bounds, on both sides of them, and as anything.
odd = {
    "id": st.sampled_from(["0", "1", "007", "-1", "9" * 18, str(2**63 - 1), str(2**63), "1_0", "\u0661", ""]),
    "message_id": st.sampled_from(["acme|", "acm|1", "beta|1", "acme|" + "x" * 195, "acme|" + "x" * 196])
    | texts.map("acme|".__add__),
    "queue": st.sampled_from(["receipts", "Previews", "q" * 63, "q" * 64, ""]),
    "lane": st.sampled_from(["beta", "acme-", "-acme", "a" * 64, ""]),
    "priority": st.sampled_from(["0", "9", "10", "-1", "05", ""]),
    "not_before": st.sampled_from([CREATED, "infinity", "soon"]),
    "body": st.sampled_from(
        ["", "x", "{}", "x" * 4096, "x" * 4097, "\u00e9" * 2048, "\u00e9" * 2049, '"},{"']
    )
    | texts,
    "created_at": st.sampled_from(["infinity", ""]) | texts,
}
rows = st.fixed_dictionaries(
    {}, optional={name: st.none() | texts | values for name, values in odd.items()}
).map(lambda changed: {**GOOD, **changed})


def as_pgoutput(columns: Mapping[str, str | None]) -> bytes:
    def column(value: str | None) -> bytes:
        return b"n" if value is None else b"t" + struct.pack("!I", len(value.encode())) + value.encode()

    return b"I" + struct.pack("!IBh", OID, ord("N"), len(NAMES)) + b"".join(column(columns[n]) for n in NAMES)


def as_wal2json(columns: Mapping[str, str | None]) -> bytes:
    """Write the record as the plugin does: numbers bare."""
    values: list[str] = []
    for name in NAMES:
        value = columns[name]
        bare = value if name in {"id", "priority"} and value else json.dumps(value, ensure_ascii=False)
        values.append(f'{{"name":"{name}","value":{bare}}}')
    head = '{"action":"I","xid":1265,"lsn":"0/202C860","schema":"public","table":"outbox","columns":['
    return (head + ",".join(values) + "]}").encode()


def learned() -> PgOutput:
    """Return a decoder that has read a row like GOOD."""
    decoder = careful()
    decoder.feed(as_pgoutput(GOOD), 0)
    return decoder


def careful() -> PgOutput:
    """Return a decoder that has learned nothing, and reads the next row with care."""
    decoder = PgOutput()
    decoder.feed(RELATION, 0)
    return decoder


def outcome(decoder: Decoder, payload: bytes) -> Sequence[Event] | str:
    try:
        return decoder.feed(payload, 0)
    except DecodeError:
        return "refused"


def test_a_usual_row_is_read_as_one() -> None:
    row = outbox_row(GOOD)
    assert isinstance(row, OutboxRow)
    assert usual.record(as_wal2json(GOOD).decode()) == row
    inserts = usual.Inserts()
    inserts.announced(OID, NAMES, outbox=True)
    assert as_pgoutput(GOOD).startswith(inserts.start)
    assert inserts.row(as_pgoutput(GOOD)) is None
    inserts.learn(row)
    assert inserts.row(as_pgoutput(GOOD)) == row


def test_rows_of_a_changed_table_are_not_usual() -> None:
    inserts = usual.Inserts()
    inserts.announced(OID, NAMES, outbox=True)
    inserts.announced(OID + 1, NAMES, outbox=False)
    assert as_pgoutput(GOOD).startswith(inserts.start)
    inserts.announced(OID, (*NAMES[:4], "urgency", *NAMES[5:]), outbox=True)
    assert not as_pgoutput(GOOD).startswith(inserts.start)


def test_middles_are_kept_within_bounds() -> None:
    decoder = learned()
    for number in range(3):
        lane = f"lane{number}"
        columns = {**GOOD, "lane": lane, "message_id": f"{lane}|1"}
        assert decoder.feed(as_pgoutput(columns), 0) == (outbox_row(columns),)
        assert decoder.feed(as_pgoutput(columns), 0) == (outbox_row(columns),)


@settings(deadline=None, max_examples=300)
@given(rows)
def test_any_row_is_the_same_row_either_way(columns: dict[str, str | None]) -> None:
    message = as_pgoutput(columns)
    assert outcome(learned(), message) == outcome(careful(), message)
    record = as_wal2json(columns)
    assert outcome(Wal2Json(), record) == outcome(Wal2Json(), b" " + record)


@settings(deadline=None, max_examples=500)
@given(data=st.data())
def test_any_changed_byte_is_the_same_either_way(data: st.DataObject) -> None:
    for whole, fast, slow in (
        (as_pgoutput(GOOD), learned(), careful()),
        (as_wal2json(GOOD), Wal2Json(), None),
    ):
        at = data.draw(st.integers(1, len(whole) - 1))
        byte = data.draw(st.integers(0, 255).map(lambda n: bytes([n])) | st.just(b"") | st.binary(max_size=3))
        changed = whole[:at] + byte + whole[at + 1 :]
        other = outcome(slow, changed) if slow else outcome(Wal2Json(), b" " + changed)
        assert outcome(fast, changed) == other
