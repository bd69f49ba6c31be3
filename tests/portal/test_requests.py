"""Requests in every form that HTTP knows: each is one request, with one answer, and names one thing."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from portal.asked import MAX_LINES_BYTES
from support.hostile import TYPE, good
from support.raw_http import connect, exchange, read_answer, request_head
from support.team import Client, House, rows
from support.waiting import eventually

WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.mark.parametrize(
    "target", ["http://portal.example/v1/jobs", "HTTP://x:80/v1/jobs", "https://x/v1/jobs"]
)
def test_a_target_with_a_host_is_the_same_resource(client: Client, target: str) -> None:
    """RFC 9112, 3.2.2: a server must take the absolute form, though only proxies are sent it."""
    status, _, body = exchange(client.url, request_head("GET", f"{target}?limit=1", client.token, []))
    assert (status, json.loads(body)["jobs"]) == (200, [])


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v1/jobs", "/livez", "/v1/documents"])
def test_a_method_that_is_not_known_is_told_those_that_are(client: Client, path: str) -> None:
    for method in ("DELETE", "OPTIONS", "TRACE", "get", "X" * 100):
        status, headers, body = exchange(client.url, request_head(method, path, client.token, [], b""))
        assert (method, status) == (method, 405)
        assert json.loads(body)["type"] == "/problems/method-not-allowed"
        assert {"GET", "PUT"} & set(headers["allow"].split(", "))


@pytest.mark.parametrize("method", ["CONNECT", "OPTIONS"])
def test_what_only_a_proxy_would_do_is_refused(client: Client, method: str) -> None:
    target = "elsewhere:443" if method == "CONNECT" else "*"
    status, headers, body = exchange(client.url, request_head(method, target, client.token, []))
    assert (status, json.loads(body)["type"]) == (404, "/problems/not-found")
    assert headers["content-type"] == "application/problem+json"


def test_a_parameter_that_is_given_twice_is_refused(client: Client) -> None:
    """Which of two would count is nobody's guess."""
    for query in ("limit=1&limit=2", "status=queued&status=dead", "limit=1&limit=1", "cursor=&cursor="):
        answer = client.http.get(f"/v1/jobs?{query}")
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
        assert answer.json()["errors"][0]["pointer"] == query.partition("=")[0]


def test_requests_in_one_piece_are_answered_in_turn(client: Client) -> None:
    """Pipelining: three jobs, of which two have one key."""
    digest = client.put()
    pieces = [
        request_head("POST", "/v1/jobs", client.token, [(b"Idempotency-Key", key), TYPE, *last], good(digest))
        for key, last in ((b"a", []), (b"a", []), (b"b", [(b"Connection", b"close")]))
    ]
    with connect(client.url) as connection:
        connection.sendall(b"".join(pieces))
        answers = list(_answers(connection.makefile("rb").read()))
    assert [status for status, _ in answers] == [202] * 3
    ids = [json.loads(body)["id"] for _, body in answers]
    assert ids[0] == ids[1] != ids[2]
    assert rows(client)["jobs"] == 2


def _answers(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        yield int(head.split()[1]), rest[:length]
        data = rest[length:]


def test_http_1_0_is_spoken_and_ends_with_the_answer(client: Client) -> None:
    head = request_head(
        "POST", "/v1/jobs", client.token, [(b"Idempotency-Key", b"old"), TYPE], good(client.put())
    )
    with connect(client.url) as connection:
        connection.sendall(head.replace(b"HTTP/1.1\r\nHost: test\r\n", b"HTTP/1.0\r\n", 1))
        status, headers, _ = read_answer(connection)
        assert (status, headers["connection"]) == (202, "close")
        assert connection.recv(1) == b""


def test_every_refusal_carries_its_date(client: Client) -> None:
    for request in (b"nonsense\r\n\r\n", request_head("GET", "/nowhere", None, [])):
        _, headers, _ = exchange(client.url, request)
        assert headers["date"].endswith("GMT")


def test_bodies_that_one_team_holds_leave_room_for_the_others(client: Client, other: Client) -> None:
    """Batches that are almost complete and never end: theirs is the waiting."""
    digest = other.put()
    length = (b"Content-Length", str(MAX_LINES_BYTES).encode())
    kind = (b"Content-Type", b"application/x-ndjson")
    held = b"\n" * (MAX_LINES_BYTES - 1)
    with ExitStack() as opened:
        for n in range(3):
            connection = opened.enter_context(connect(client.url))
            key = (b"Idempotency-Key", b"held-%d" % n)
            connection.sendall(request_head("POST", "/v1/batches", client.token, [key, kind, length]))
            threading.Thread(target=_sent, args=(connection, held), daemon=True).start()
        eventually(lambda: client.post({"document": digest, "kind": "page"}).status_code == 503)
        answer = other.post({"document": digest, "kind": "page"})
        assert answer.status_code == 202, answer.text


def _sent(connection: object, data: bytes) -> None:
    try:
        connection.sendall(data)  # type: ignore[attr-defined]
    except OSError:  # refused, or the test is over
        return


def test_batches_of_one_team_leave_connections_for_the_others(
    client: Client, other: Client, house: House
) -> None:
    """They wait at the database, more of them than there are connections: the others are served."""
    digest, theirs = client.put(), other.put()
    statuses: list[int] = []

    def batch(n: int) -> None:
        body = {"jobs": [{"document": digest, "kind": "page"}] * 2}
        statuses.append(client.post(body, path="/v1/batches", key=f"b{n}").status_code)

    with house.database.server.connect(house.database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE batches IN SHARE MODE")
        threads = [threading.Thread(target=batch, args=[n]) for n in range(20)]
        for thread in threads:
            thread.start()
        eventually(lambda: (house.database.admin.execute(WAITING).fetchone() or (0,))[0] >= 2)
        for _ in range(5):
            answer = other.post({"document": theirs, "kind": "page"})
            assert (answer.status_code, answer.elapsed.total_seconds() < 1.5) == (202, True)
    for thread in threads:
        thread.join()
    assert set(statuses) <= {202, 503}
    assert 202 in statuses
