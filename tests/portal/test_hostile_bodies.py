"""Whatever arrives as a body: a 4xx in valid JSON, the process alive, nothing stored, others served."""

import json
import threading
import time
import tracemalloc
from collections.abc import Callable

import psutil
import pytest

from portal.asked import MAX_BATCH_BYTES, MAX_JOB_BYTES, MAX_LINES_BYTES, lines
from portal.problems import KINDS, Problem
from support.hostile import (
    JSON,
    KEY,
    NDJSON,
    PIECE,
    REQUESTS,
    TYPE,
    flood_of_lists,
    good,
    many,
    with_field,
)
from support.raw_http import connect, exchange, read_answer, request_head
from support.team import Client, House, rows

NOTHING = {"jobs": 0, "events": 0, "intents": 0, "requests": 0, "batches": 0}


def test_every_hostile_request_gets_its_problem_and_leaves_nothing(client: Client, house: House) -> None:
    digest = client.put()
    found: list[tuple[str, int, str]] = []
    for row in REQUESTS:
        status, headers, body = exchange(client.url, row.request(client.token, digest))
        problem = json.loads(body)
        assert headers["content-type"] == "application/problem+json", row.name
        assert problem["status"] == status, row.name
        assert "Traceback" not in body.decode(), row.name
        found.append((row.name, status, problem["type"]))
    assert found == [(row.name, KINDS[row.slug].status, f"/problems/{row.slug}") for row in REQUESTS]
    assert rows(client) == NOTHING
    assert house.portal.running


def test_what_is_allowed_at_the_limits_is_taken_and_comes_back_unchanged(client: Client) -> None:
    digest = client.put()
    longest = r'"title": "' + r"\u00fc" * 200 + '"'
    for field, title in (
        (longest, "ü" * 200),
        (r'"title": "\\u0000"', r"\u0000"),
        (r'"title": "\ud83d\ude00"', "😀"),
        (r'"title": "a\r\n\u001b[31m"', "a\r\n\x1b[31m"),
        ('"title": null', None),
    ):
        answer = client.http.post(
            "/v1/jobs",
            content=with_field(digest, field),
            headers={
                "Idempotency-Key": field[:20].replace(" ", ""),
                "Content-Type": "Application/JSON; charset=UTF-8",
            },
        )
        assert answer.status_code == 202, answer.text
        assert client.http.get(answer.json()["links"]["self"]).json()["title"] == title
    padded = good(digest) + b" " * (MAX_JOB_BYTES - len(good(digest)))
    headers = {"Idempotency-Key": "padded", "Content-Type": "application/json"}
    assert client.http.post("/v1/jobs", content=padded, headers=headers).status_code == 202
    assert client.http.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("media_type", "limit", "body"),
    [(JSON, MAX_BATCH_BYTES, many), (NDJSON, MAX_LINES_BYTES, good)],
    ids=["JSON", "NDJSON"],
)
def test_a_batch_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(
    client: Client, media_type: bytes, limit: int, body: Callable[[str], bytes], *, chunked: bool
) -> None:
    content = body(client.put()).ljust(limit)
    headers = {"Idempotency-Key": "k", "Content-Type": media_type.decode()}

    def post(given: bytes) -> int:
        sent = (given[n : n + PIECE] for n in range(0, len(given), PIECE)) if chunked else given
        return client.http.post("/v1/batches", content=sent, headers=headers).status_code

    assert post(content + b" ") == 413
    assert rows(client) == NOTHING
    assert post(content) == 202
    assert rows(client) == {"jobs": 1, "events": 1, "intents": 1, "requests": 1, "batches": 1}


def test_a_client_that_promises_more_than_it_sends_and_leaves_changes_nothing(
    client: Client, house: House
) -> None:
    body = good(client.put())
    with connect(client.url) as short:
        head = request_head("POST", "/v1/jobs", client.token, [KEY, TYPE, (b"Content-Length", b"5000")])
        short.sendall(head + body)
    assert client.http.get("/v1/jobs").status_code == 200
    assert rows(client) == NOTHING
    assert house.portal.running


def test_a_body_that_trickles_is_let_go(client: Client) -> None:
    head = request_head("POST", "/v1/jobs", client.token, [KEY, TYPE])[:-2]
    with connect(client.url, timeout=0.2) as slow:
        slow.sendall(head + b"Content-Length: 3000\r\n\r\n")
        started = time.monotonic()
        answer = b""
        while not answer and time.monotonic() - started < 30:
            slow.sendall(b" ")
            try:
                answer = slow.recv(4096)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")
        assert 9 < time.monotonic() - started < 15


def test_without_a_token_no_body_is_read(client: Client) -> None:
    """The answer comes while the body has not been sent, and nobody asks for it."""
    for token in (None, "wrong-token-wrong-token"):
        headers = [KEY, (b"Content-Length", b"10000000"), (b"Expect", b"100-continue")]
        with connect(client.url) as waiting:
            waiting.sendall(request_head("PUT", "/v1/documents", token, headers))
            status, told, body = read_answer(waiting)
        assert (status, json.loads(body)["type"]) == (401, "/problems/unauthenticated")
        assert told["www-authenticate"].startswith("Bearer")
        assert told["connection"] == "close"


def test_floods_of_bodies_leave_memory_and_the_others_alone(client: Client, house: House) -> None:
    """20 x 10 MB without a token, 20 batches that would make much of memory: bounded, others served."""
    process = psutil.Process(house.portal.pid)
    client.put()
    before = process.memory_info().rss
    peak = before
    worst = 0.0
    done = threading.Event()
    lists = flood_of_lists()
    floods = [
        request_head("PUT", "/v1/documents", None, [], b"x" * 10_000_000),
        request_head("POST", "/v1/batches", client.token, [KEY, TYPE], lists),
    ] * 20
    statuses: list[int] = []

    def flood(request: bytes) -> None:
        statuses.append(exchange(client.url, request)[0])

    def watch() -> None:
        nonlocal peak, worst
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            started = time.monotonic()
            assert client.http.get("/v1/jobs").status_code == 200
            worst = max(worst, time.monotonic() - started)

    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [threading.Thread(target=flood, args=[request]) for request in floods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert set(statuses) <= {401, 422, 503}
    assert statuses.count(401) == 20
    assert peak - before < 100_000_000 + 2 * MAX_BATCH_BYTES, f"{(peak - before) / 1e6} MB"
    assert worst < 2.0, worst
    assert rows(client) == NOTHING


def test_millions_of_blank_lines_are_refused_before_they_are_texts() -> None:
    body = bytearray(b"\n" * MAX_LINES_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(Problem) as refused:
            lines(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.slug == "invalid-request"
    assert peak < 1 << 20
