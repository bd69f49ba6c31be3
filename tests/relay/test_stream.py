"""The stream gives what was committed, in bounded bursts, and lets the server forget no more than is safe."""

import gc
import os
import socket
import struct
import threading
import time
from pathlib import Path

import psycopg
import pytest

from relay import slot
from relay.errors import PublicationMissing, ServerAway, StreamError
from relay.events import Begin, Commit, OutboxRow, lsn_int
from relay.stream import Frame, ReplicationStream
from support.postgres import Database
from support.proxy import Proxies
from support.waiting import eventually
from support.wal import PUBLICATION, Reader

WRITE = "INSERT INTO control (lane, who) VALUES ('a', 'test')"
ELSEWHERE = "SELECT pg_logical_emit_message(false, 'elsewhere', repeat('x', 1000))"
MUCH = "SELECT pg_logical_emit_message(false, 'elsewhere', repeat('x', 1000000))"
FILL = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
SELECT 'a|' || n, 'previews', 'a', 5, '{"padding":"' || repeat('x', 400) || '"}' FROM generate_series(1, %s) n
"""


def confirmed(conn: psycopg.Connection, reader: Reader) -> int:
    return lsn_int(slot.slot_state(conn, reader.database.slot).confirmed_flush_lsn or "0/0")


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def next_commit(reader: Reader) -> Commit:
    """Write, and read up to the commit."""
    reader.database.admin.execute(WRITE)
    commit = reader.until(lambda events: bool(events) and isinstance(events[-1], Commit))[-1]
    assert isinstance(commit, Commit)
    return commit


def test_what_is_confirmed_by_its_end_does_not_come_again(
    reader: Reader, relay_conn: psycopg.Connection
) -> None:
    first, second = next_commit(reader), next_commit(reader)
    reader.stream.confirm(first.end_lsn)
    eventually(lambda: confirmed(relay_conn, reader) == first.end_lsn)
    reader.stream.confirm(0)
    assert reader.stream.confirmed == first.end_lsn
    reader.stream.close()
    eventually(lambda: slot.slot_state(relay_conn, reader.database.slot).active_pid is None)
    reader.open()
    again = reader.until(lambda events: bool(events) and isinstance(events[-1], Commit))
    assert again[-1] == second
    assert len(again) == 3


def test_a_start_position_skips_what_was_dealt_with(reader: Reader, relay_conn: psycopg.Connection) -> None:
    first, second = next_commit(reader), next_commit(reader)
    reader.stream.close()
    eventually(lambda: slot.slot_state(relay_conn, reader.database.slot).active_pid is None)
    reader.open(start_lsn=first.end_lsn)
    assert reader.until(lambda events: bool(events) and isinstance(events[-1], Commit))[-1] == second


def test_a_start_of_another_life_is_not_believed(reader: Reader, relay_conn: psycopg.Connection) -> None:
    commit = next_commit(reader)
    reader.stream.close()
    eventually(lambda: slot.slot_state(relay_conn, reader.database.slot).active_pid is None)
    reader.open(start_lsn=commit.end_lsn + 2**40)
    assert reader.until(lambda events: bool(events) and isinstance(events[-1], Commit))[-1] == commit


def test_the_future_cannot_be_confirmed(reader: Reader) -> None:
    with pytest.raises(ValueError, match="cannot confirm"):
        reader.stream.confirm(1)
    commit = next_commit(reader)
    assert commit.end_lsn <= reader.stream.received
    with pytest.raises(ValueError, match="received only up to"):
        reader.stream.confirm(reader.stream.received + 1)


def test_an_idle_stream_lets_go_of_what_others_write(reader: Reader, relay_conn: psycopg.Connection) -> None:
    admin = reader.database.admin
    admin.execute(ELSEWHERE)
    (end,) = admin.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("0/0",)

    def let_go() -> bool:
        assert reader.events(0.05) == []
        reader.stream.confirm_idle()
        return confirmed(relay_conn, reader) >= lsn_int(end)

    eventually(let_go)


def test_much_that_others_write_ends_a_wait(reader: Reader, relay_conn: psycopg.Connection) -> None:
    # A wait of 0.3 s was long enough for 64 MB.
    admin = reader.database.admin
    before = confirmed(relay_conn, reader)
    enough = threading.Event()

    def write() -> None:  # for as long as is read: the last of it, below the limit, ends no wait
        for _ in range(300):
            admin.execute(MUCH)
            if enough.wait(0.1):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        began = time.monotonic()
        while confirmed(relay_conn, reader) < before + (4 << 20):
            assert reader.stream.read(60) == []
            assert time.monotonic() - began < 30
            reader.stream.confirm_idle()
    finally:
        enough.set()
        writer.join()


def test_messages_that_others_emit_are_not_sent_here(reader: Reader) -> None:
    # wal2json sent all of them: a gigabyte of somebody's messages held the slot up by 690 MB.
    for transactional in (False, True):
        emit = "SELECT pg_logical_emit_message(%s, 'theirs', repeat('x', 100000))"
        reader.database.admin.execute(emit, [transactional])
    reader.database.admin.execute(WRITE)
    size = 0
    while size == 0:
        size += sum(len(frame.payload) for frame in reader.stream.read(1.0))
    assert size < 10_000


def test_nothing_is_confirmed_that_the_caller_did_not_confirm(
    reader: Reader, relay_conn: psycopg.Connection
) -> None:
    before = confirmed(relay_conn, reader)
    next_commit(reader)
    reader.database.admin.execute(ELSEWHERE)
    deadline = time.monotonic() + 0.4
    while time.monotonic() < deadline:
        reader.events()
    assert reader.stream.received > before
    assert confirmed(relay_conn, reader) == before


def test_a_burst_is_bounded_by_frames_and_by_bytes(reader: Reader) -> None:
    reader.database.admin.execute(FILL, [2_000])
    frames: list[Frame] = []
    while len(frames) < 2_002:
        burst = reader.stream.read(5, max_frames=100, max_bytes=10_000)  # empty: the server asked something
        assert len(burst) <= 100
        assert sum(len(frame.payload) for frame in burst[:-1]) < 10_000
        frames += burst


def test_a_burst_comes_at_once_and_silence_takes_its_time(reader: Reader) -> None:
    def silent() -> bool:
        """Whether a read lasted; those before it end early, for WAL of others and the server's questions."""
        started = time.monotonic()
        assert reader.stream.read(0.3) == []
        reader.stream.confirm_idle()
        return time.monotonic() - started >= 0.3

    eventually(silent)
    reader.database.admin.execute(WRITE)
    started = time.monotonic()
    eventually(lambda: reader.stream.read(10))
    assert time.monotonic() - started < 5
    assert reader.stream.read(0) is not None


def test_a_huge_transaction_takes_little_memory_and_answers_meanwhile(unopened: Reader) -> None:
    count = 100_000 if unopened.plugin == unopened.database.server.decoder else 20_000
    unopened.database.admin.execute(FILL, [count])
    # Server and client would give each other up after three seconds without a word.
    unopened.open(wal_sender_timeout=3)
    gc.collect()
    before, most, rows, biggest = rss_bytes(), 0, 0, 0
    done = False
    deadline = time.monotonic() + 60
    while not done:
        assert time.monotonic() < deadline
        events = unopened.events(1)
        biggest = max(biggest, len(events))
        rows += sum(isinstance(event, OutboxRow) for event in events)
        done = any(isinstance(event, Commit) for event in events)
        most = max(most, rss_bytes())
    assert rows == count
    assert biggest <= 1_000
    assert most - before < 24 << 20


def test_an_idle_stream_outlives_the_timeout_of_both_sides(unopened: Reader) -> None:
    unopened.open(wal_sender_timeout=1)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        events = unopened.events(0.5)  # autovacuum's transactions are among them, without a row
        assert all(isinstance(event, Begin | Commit) for event in events)
    next_commit(unopened)


def test_a_caller_that_was_busy_for_long_is_cut_off_and_told_so(unopened: Reader) -> None:
    stream = unopened.open(wal_sender_timeout=1)
    conn = unopened.database.admin
    gone = "SELECT count(*) = 0 FROM pg_stat_replication WHERE pid = %s"
    eventually(lambda: conn.execute(gone, [stream.pid]).fetchone() == (True,))
    with pytest.raises(ServerAway):
        unopened.until(lambda _: False)
    with pytest.raises(ServerAway):
        stream.read(0)
    with pytest.raises(ServerAway):
        stream.confirm(stream.received)
    stream.close()


def test_a_frozen_server_is_noticed(unopened: Reader) -> None:
    unopened.open(wal_sender_timeout=1)
    unopened.database.server.freeze()
    started = time.monotonic()
    with pytest.raises(ServerAway, match="said nothing"):
        unopened.until(lambda _: False)
    assert time.monotonic() - started < 5
    unopened.database.server.thaw()


def test_a_half_open_link_is_noticed(unopened: Reader, proxies: Proxies) -> None:
    proxy = proxies.to(unopened.database.server.port)
    unopened.open(wal_sender_timeout=1, port=proxy.port)
    next_commit(unopened)
    proxy.blackhole()
    with pytest.raises(ServerAway, match="said nothing"):
        unopened.until(lambda _: False)
    proxy.cut()
    with pytest.raises(ServerAway, match="no replication connection"):
        unopened.open(port=proxy.port)


def test_a_terminated_walsender_is_the_server_being_away(reader: Reader) -> None:
    reader.database.admin.execute("SELECT pg_terminate_backend(%s, 5000)", [reader.stream.pid])
    with pytest.raises(ServerAway, match="57P01"):
        reader.until(lambda _: False)


def test_a_missing_publication_is_named_or_silent(unopened: Reader) -> None:
    """PostgreSQL 18 skips the rows, which is why publication.passes_all is asked at each connect."""
    if unopened.plugin == "wal2json":
        unopened.open(publication="nobody")
        assert next_commit(unopened)
        return
    unopened.open(publication="nobody")
    unopened.database.admin.execute(WRITE)
    if unopened.database.server.version < 18:
        with pytest.raises(PublicationMissing, match="oncommit migrate"):
            unopened.until(lambda _: False)
    else:
        (end,) = unopened.database.admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("0/0",)
        assert unopened.until(lambda _: unopened.stream.received >= lsn_int(end)) == []


@pytest.mark.parametrize("held", [False, True], ids=["all confirmed", "a transaction held"])
def test_a_fast_shutdown_of_the_server_is_not_held_up(reader: Reader, held: bool) -> None:
    """Held: the server asks again and again, the stream notices and leaves; what was held comes again."""
    server = reader.database.server
    commit = next_commit(reader)
    if not held:
        reader.stream.confirm(commit.end_lsn)

    def read_on(_: object) -> bool:
        if not held:
            reader.stream.confirm_idle()
        return False

    started = time.monotonic()
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    with pytest.raises(ServerAway, match="stopping" if held else "ended the stream"):
        reader.until(read_on)
    stopper.join(20)
    assert time.monotonic() - started < 10
    server.start()
    # Before PostgreSQL 17 not even a clean stop keeps the slot's position: it is kept elsewhere.
    reader.open(start_lsn=reader.stream.confirmed)
    with psycopg.connect(reader.database.dsn(), autocommit=True) as admin:
        admin.execute(WRITE)
    commits = [
        e
        for e in reader.until(lambda e: sum(isinstance(x, Commit) for x in e) > held)
        if isinstance(e, Commit)
    ]
    assert (commit in commits) == held


def test_closing_gives_the_slot_back_at_once(reader: Reader, relay_conn: psycopg.Connection) -> None:
    reader.database.admin.execute(FILL, [20_000])
    eventually(lambda: reader.stream.read(5))
    assert reader.stream.fileno() >= 0
    started = time.monotonic()
    reader.stream.close()
    assert time.monotonic() - started < 5  # a second of it may be the polite end of COPY
    reader.stream.close()
    assert reader.stream.fileno() == -1
    eventually(lambda: slot.slot_state(relay_conn, reader.database.slot).active_pid is None)


def test_a_server_that_nobody_reaches_is_away(database: Database) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(ServerAway):
        Reader(database, "pgoutput").open(port=port)


def test_a_role_that_may_not_replicate_gets_no_stream(database: Database) -> None:
    with pytest.raises(StreamError):
        ReplicationStream.open(
            database.dsn("worker"), database.slot, slot.new_decoder("pgoutput"), publication=PUBLICATION
        )


def test_a_name_that_does_not_fit_a_command_is_refused(database: Database) -> None:
    def open_stream(name: str, publication: str) -> None:
        decoder = slot.new_decoder("pgoutput")
        ReplicationStream.open(database.dsn("relay"), name, decoder, publication=publication)

    for name in ("", "Slot", "a-b", "a b", "a'b", "a;b", "x" * 64):
        with pytest.raises(ValueError, match="name"):
            open_stream(name, PUBLICATION)
        with pytest.raises(ValueError, match="name"):
            open_stream(database.slot, name)
    with pytest.raises(ValueError, match="at least 1 second"):
        Reader(database, "pgoutput").open(wal_sender_timeout=0.5)


def test_a_status_is_what_the_protocol_says(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    pulse = reader.stream._pulse
    monkeypatch.setattr(pulse, "_pg", _Spy(pulse._pg, sent))
    commit = next_commit(reader)
    reader.stream.confirm(commit.end_lsn)
    kind, written, flushed, applied, _, asks = struct.unpack("!cQQQqB", sent[-1])
    assert (kind, written, flushed, applied, asks) == (b"r", *[commit.end_lsn] * 3, 0)


class _Spy:
    """Passes everything on, and keeps what is put."""

    def __init__(self, inner: object, sent: list[bytes]) -> None:
        self._inner = inner
        self._sent = sent

    def put_copy_data(self, data: bytes) -> object:
        self._sent.append(data)
        return self._inner.put_copy_data(data)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
