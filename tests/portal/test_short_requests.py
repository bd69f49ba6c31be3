"""Short requests: what is read without h11 is what h11 reads, and the answer is what it would send."""

import random
import re
import socket
from collections.abc import Iterator

import h11
import pytest

from portal import short_requests
from portal.wellformed import HEADER_BYTES
from support.hostile import REQUESTS, TYPE, good
from support.raw_http import connect, read_answer, request_head
from support.team import Client

JOBS = "/v1/jobs"
PLAIN = request_head(
    "POST", JOBS, "a-token", [(b"Idempotency-Key", b"k"), TYPE, (b"X-Empty", b"")], b'{"kind": "page"}'
)
#: What two readers of HTTP are known to read differently, and what only one of them minds.
PIECES = (
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b" ", b"\t", b"\0", b"\x0b", b"\x7f", b"\x80", b"\xff", b":",
    b",", b";", b"\r\n ", b"\r\n\t", b" :", b"0", b"1", b"-", b"+", b"Host: x\r\n", b"\r\nHost: x",
    b"\r\n: x", b"\r\nX", b"\r\nA: b\r\nA: c", b"Content-Length: 3\r\n",
    b"\r\nContent-Length: 16", b"\r\nTE: trailers",
    b"\r\nTransfer-Encoding: chunked", b"\r\nConnection: close", b"\r\nConnection: keep-alive",
    b"\r\nConnection: Keep-Alive, X", b"\r\nUpgrade: websocket", b"\r\nExpect: 100-continue",
    b"GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
CHANGES = re.compile(
    rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\r\n(?:date|ratelimit): [^\r]*|"
    rb'"(?:created|updated)_at":"[^"]+"|"trace":"[0-9a-f]+"'
)


def by_h11(data: bytes) -> tuple[short_requests.Headers, bytes] | None:
    """Return what h11 reads, if it is one whole request of that route and the connection goes on; or None."""
    conn = h11.Connection(h11.SERVER, HEADER_BYTES)
    conn.receive_data(data)
    events: list[object] = []
    try:
        while not isinstance(event := conn.next_event(), type):  # NEED_DATA and PAUSED are classes
            events.append(event)
    except h11.RemoteProtocolError:
        return None
    if not events or not isinstance(asked := events[0], h11.Request) or conn.trailing_data[0]:
        return None
    told = (
        conn.they_are_waiting_for_100_continue,
        conn.their_state,
        asked.http_version,
        asked.method,
        asked.target,
    )
    if told != (False, h11.DONE, b"1.1", b"POST", JOBS.encode()):
        return None
    body = b"".join(bytes(event.data) for event in events if isinstance(event, h11.Data))
    return list(asked.headers), body


def bent() -> Iterator[bytes]:
    """Yield a plain request with up to three of the pieces somewhere in it, or something left out."""
    chance = random.Random(20261201)
    for _ in range(30_000):
        data = bytearray(PLAIN)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data))
            if line_begins := [found.end() for found in re.finditer(rb"\r\n", data)]:
                at = chance.choice([at, chance.choice(line_begins), chance.choice(line_begins) - 2])
            data[at : at + chance.choice((0, 0, 0, 1, 2, 9))] = chance.choice(PIECES)
        yield bytes(data)


def test_what_is_read_is_what_h11_reads() -> None:
    taken = 0
    hostile = [row.request("a-token", "sha256:" + "0" * 64) for row in REQUESTS]
    for data in (PLAIN, *hostile, *bent()):
        if (found := short_requests.read(data)) is not None:
            assert found == by_h11(data), data
            taken += 1
    assert short_requests.read(PLAIN) is not None
    assert taken > 1_000, "else this compares little"


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(b"POST", b"PUT", 1),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        PLAIN.replace(b" HTTP", b"?a=1 HTTP", 1),
        PLAIN + b"x",
        PLAIN[:-1],
        PLAIN.replace(b"Host: test\r\n", b""),
        PLAIN.replace(b"X-Empty", b"Host"),
        PLAIN.replace(b"X-Empty: ", b"Connection: close"),
        PLAIN.replace(b"X-Empty: ", b"Expect: 100-continue"),
        PLAIN.replace(b"X-Empty: ", b"Transfer-Encoding: chunked"),
        PLAIN.replace(b"X-Empty: ", b"Content-Length: 16"),
        PLAIN.replace(b"X-Empty: ", b"X-Empty: " + b"x" * HEADER_BYTES),
    ],
)
def test_what_is_another_or_frames_itself_otherwise_is_left_to_h11(data: bytes) -> None:
    assert short_requests.read(data) is None


def test_a_value_of_blanks_is_read_in_little_time() -> None:
    """However many there are, each is looked at a few times: a lazy regular expression takes minutes."""
    blank = PLAIN.replace(b"X-Empty: ", b"X: x" + b" " * 8_000 + b"x")
    for _ in range(1_000):
        assert short_requests.read(blank) is not None


def answer(connection: socket.socket, pieces: list[bytes]) -> bytes:
    for piece in pieces:
        connection.sendall(piece)
    file = connection.makefile("rb")
    head = b"".join(iter(file.readline, b"\r\n"))
    length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
    return CHANGES.sub(b"", head + file.read(length))


def test_the_answer_is_the_one_that_h11_sends(client: Client) -> None:
    """The same by both ways, byte for byte: `TE` makes a request one of h11's."""
    digest = client.put()

    def key(name: bytes) -> tuple[bytes, bytes]:
        return b"Idempotency-Key", name

    seen = set[bytes]()
    for token, headers, body in (
        (client.token, [key(b"KEY"), TYPE], good(digest)),
        (client.token, [key(b"twice"), TYPE], good(digest)),
        (client.token, [key(b"twice"), TYPE], good(digest, priority=9)),
        (client.token, [key(b"KEY"), TYPE], good("sha256:" + "1" * 64)),
        (client.token, [key(b"KEY"), TYPE], b"{"),
        (client.token, [key(b"KEY")], good(digest)),
        (client.token, [TYPE], b""),
        ("wrong-token-wrong-token", [key(b"KEY"), TYPE], good(digest)),
    ):
        short, long = (
            request_head("POST", JOBS, token, headers, body).replace(b"KEY", name)
            for name in (b"short-%d" % len(seen), b"long-%d" % len(seen))
        )
        assert short_requests.read(short) is not None
        long = long.replace(b"Host: test\r\n", b"Host: test\r\nTE: trailers\r\n", 1)
        assert short_requests.read(long) is None
        if b"twice" in short and b"priority" not in short:
            with connect(client.url) as first:
                answer(first, [short])
        with connect(client.url) as one, connect(client.url) as two:
            mine, theirs = answer(one, [short]), answer(two, [long])
            assert mine == theirs
            ended = b"connection: close" in mine.lower()
            for connection in (one, two):
                if ended:
                    assert connection.recv(1) == b"", "it ends after this answer"
                else:
                    connection.sendall(short)
                    assert read_answer(connection)[0] == int(mine.split()[1]) or b"202" in mine
        seen.add(mine.split(b"\r\n")[0])
    assert {line.split()[1] for line in seen} == {b"202", b"422", b"400", b"415", b"401"}


def test_what_comes_while_one_is_answered_is_next(client: Client) -> None:
    """Short ones, one in pieces and one of h11's, each sent before the one before it is answered."""
    digest = client.put()
    asked = [
        request_head("POST", JOBS, client.token, [(b"Idempotency-Key", b"n%d" % n), TYPE], good(digest))
        for n in range(4)
    ]
    lists = request_head("GET", JOBS, client.token, [])
    sent = [asked[0], asked[1] + asked[2][:50], asked[2][50:], lists, asked[3]]
    with connect(client.url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in sent:
            connection.sendall(data)
        file = connection.makefile("rb")
        statuses = []
        for _ in range(5):
            head = b"".join(iter(file.readline, b"\r\n"))
            statuses.append(int(head.split()[1]))
            file.read(int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1]))  # type: ignore[index]
    assert statuses == [202, 202, 202, 200, 202]
