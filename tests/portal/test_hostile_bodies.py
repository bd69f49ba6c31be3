"""Whatever arrives as a body: a 4xx in valid JSON, the process alive, nothing stored, others served."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from portal.asked import MAX_BATCH_BYTES, MAX_JOB_BYTES
from support.raw_http import connect, exchange, read_answer, request_head
from support.team import Client, House, rows

JSON = b"application/json"
KEY = (b"Idempotency-Key", b"k")
NOTHING = {"jobs": 0, "events": 0, "intents": 0, "requests": 0, "batches": 0}


def good(digest: str, **fields: object) -> bytes:
    return json.dumps({"document": digest, "kind": "page", **fields}).encode()


def with_field(digest: str, field: str) -> bytes:
    """Return a job with `field` (JSON text) added as it is written."""
    return good(digest)[:-1] + b", " + field.encode("utf-8", "surrogatepass") + b"}"


BODIES: list[tuple[str, int, Callable[[str], bytes]]] = [
    ("empty", 400, lambda _: b""),
    ("spaces", 400, lambda _: b"   "),
    ("null", 422, lambda _: b"null"),
    ("list", 422, lambda _: b"[]"),
    ("string", 422, lambda _: b'"x"'),
    ("trailing garbage", 400, lambda d: good(d) + b"x"),
    ("two documents", 400, lambda d: good(d) + good(d)),
    ("cut off", 400, lambda d: good(d)[:-1]),
    ("BOM", 400, lambda d: b"\xef\xbb\xbf" + good(d)),
    ("UTF-16", 400, lambda d: good(d).decode().encode("utf-16")),
    ("UTF-16 without BOM", 400, lambda d: good(d).decode().encode("utf-16-le")),
    ("UTF-32", 400, lambda d: good(d).decode().encode("utf-32")),
    ("invalid UTF-8", 400, lambda d: good(d)[:-1] + b',"title":"\xff"}'),
    ("overlong UTF-8", 400, lambda d: good(d)[:-1] + b',"title":"\xc0\x80"}'),
    ("raw surrogate", 400, lambda d: with_field(d, '"title": "\ud800"')),
    ("escaped surrogate", 422, lambda d: with_field(d, r'"title": "\ud800"')),
    ("surrogate key", 422, lambda d: with_field(d, r'"\udc00": 1')),
    ("NUL value", 422, lambda d: with_field(d, r'"title": "a\u0000b"')),
    ("NUL key", 422, lambda d: with_field(d, r'"a\u0000b": 1')),
    ("NUL deep", 422, lambda d: with_field(d, r'"simulate": {"a": [[["\u0000"]]]}')),
    ("raw NUL", 400, lambda d: with_field(d, '"title": "\0"')),
    ("control character", 400, lambda d: with_field(d, '"title": "\n"')),
    ("NaN", 400, lambda d: with_field(d, '"priority": NaN')),
    ("Infinity", 400, lambda d: with_field(d, '"priority": -Infinity')),
    ("1e400", 422, lambda d: with_field(d, '"priority": 1e400')),
    ("float", 422, lambda d: with_field(d, '"priority": 1.10')),
    ("2^53+1", 422, lambda d: with_field(d, '"priority": 9007199254740993')),
    ("2^63", 422, lambda d: with_field(d, '"max_attempts": 9223372036854775808')),
    ("2^64", 422, lambda d: with_field(d, '"max_attempts": 18446744073709551616')),
    ("30 digits", 422, lambda d: with_field(d, '"priority": ' + "9" * 30)),
    ("5000 digits", 422, lambda d: with_field(d, '"priority": ' + "9" * 5000)),
    ("minus one", 422, lambda d: with_field(d, '"priority": -1')),
    ("boolean for number", 422, lambda d: with_field(d, '"priority": true')),
    ("text for number", 422, lambda d: with_field(d, '"priority": "5"')),
    ("unknown field", 422, lambda d: with_field(d, '"team": "other"')),
    ("unknown simulate", 422, lambda d: with_field(d, '"simulate": {"exec": "x"}')),
    ("unknown kind", 422, lambda d: good(d, kind="video")),
    ("201 characters", 422, lambda d: good(d, title="x" * 201)),
    ("no document", 422, lambda _: b'{"kind": "page"}'),
    ("digest in capitals", 422, lambda d: good(d.upper())),
    ("digest and newline", 422, lambda d: good(d + "\n")),
    ("duplicate key", 422, lambda d: with_field(d, '"kind": "thumbnail"')),
    ("duplicate escaped", 422, lambda d: with_field(d, r'"\u006bind": "thumbnail"')),
    ("duplicate nested", 422, lambda d: with_field(d, '"simulate": {"hang": true, "hang": false}')),
    ("33 names", 422, lambda d: with_field(d, ", ".join(f'"x{n}": 1' for n in range(33)))),
    ("50 lists", 400, lambda d: with_field(d, '"title": ' + "[" * 50 + "]" * 50)),
    ("1000 lists", 400, lambda d: with_field(d, '"title": ' + "[" * 1000 + "]" * 1000)),
    ("20000 lists", 400, lambda d: with_field(d, '"title": ' + "[" * 20_000 + "]" * 20_000)),
    ("unclosed lists", 400, lambda _: b"[" * 60_000),
    ("unclosed objects", 400, lambda _: b'{"a":' * 12_000),
    ("over the limit", 413, lambda d: good(d) + b" " * (MAX_JOB_BYTES + 1 - len(good(d)))),
]


def test_every_hostile_body_gets_its_4xx(client: Client, house: House) -> None:
    digest = client.put()
    found: list[tuple[str, int]] = []
    for name, _, make in BODIES:
        head = request_head("POST", "/v1/jobs", client.token, [KEY, (b"Content-Type", JSON)], make(digest))
        status, headers, body = exchange(client.url, head)
        problem = json.loads(body)
        assert headers["content-type"] == "application/problem+json", name
        assert problem["status"] == status, name
        assert "Traceback" not in body.decode(), name
        found.append((name, status))
    assert found == [(name, status) for name, status, _ in BODIES]
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


@pytest.mark.parametrize(
    "content_type",
    [
        None, "", "text/plain", "application/problem+json", "multipart/form-data; boundary=x",
        "application/json; charset=utf-16", "application/json;charset=latin-1", "application/x-ndjson",
        "application/json, application/json",
    ],
)  # fmt: skip
def test_only_json_in_utf8_is_taken(client: Client, content_type: str | None) -> None:
    headers = [KEY] if content_type is None else [KEY, (b"Content-Type", content_type.encode())]
    head = request_head("POST", "/v1/jobs", client.token, headers, good(client.put()))
    status, _, body = exchange(client.url, head)
    assert (status, json.loads(body)["type"]) == (415, "/problems/unsupported-media-type")
    assert rows(client) == NOTHING


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "gzip, gzip", "identity, gzip", "rot13"])
def test_no_encoded_body_is_unpacked(client: Client, encoding: str) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    for path, content_type in (("/v1/jobs", JSON), ("/v1/documents", b"application/octet-stream")):
        method = "PUT" if path == "/v1/documents" else "POST"
        headers = [KEY, (b"Content-Type", content_type), (b"Content-Encoding", encoding.encode())]
        status, _, body = exchange(client.url, request_head(method, path, client.token, headers, bomb))
        assert (status, json.loads(body)["type"]) == (415, "/problems/unsupported-media-type")


def chunked(parts: Iterator[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield b"%x\r\n%s\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def test_a_chunked_body_meets_the_same_limit(client: Client) -> None:
    for path, content_type, limit in (
        ("/v1/jobs", JSON, MAX_JOB_BYTES),
        ("/v1/batches", JSON, MAX_BATCH_BYTES),
    ):
        headers = [KEY, (b"Content-Type", content_type), (b"Transfer-Encoding", b"chunked")]
        head = request_head("POST", path, client.token, headers)
        endless = b"".join(chunked(iter([b" " * 65_536] * (limit // 65_536 + 20))))
        status, _, body = exchange(client.url, head + endless)
        assert (status, json.loads(body)["type"]) == (413, "/problems/too-large")


def test_a_length_that_lies_is_no_way_in(client: Client, house: House) -> None:
    body = good(client.put())
    headers = [KEY, (b"Content-Type", JSON)]
    base = request_head("POST", "/v1/jobs", client.token, headers)[:-2]
    for length, expected in ((b"-1", 400), (b"1e3", 400), (b"9" * 30, 400), (b"99999999", 413), (b"10", 400)):
        status, headers_, told = exchange(
            client.url, base + b"Content-Length: " + length + b"\r\n\r\n" + body
        )
        assert (length, status) == (length, expected)
        assert headers_["content-type"] == "application/problem+json"
        json.loads(told)
    both = b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"
    assert exchange(client.url, base + both + body)[0] == 400
    with connect(client.url) as short:  # promises more than it sends, and leaves
        short.sendall(base + b"Content-Length: 5000\r\n\r\n" + body)
    assert rows(client) == NOTHING
    assert house.portal.running


def test_a_body_that_trickles_is_let_go(client: Client) -> None:
    head = request_head("POST", "/v1/jobs", client.token, [KEY, (b"Content-Type", JSON)])[:-2]
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
    lists = (b'{"jobs":[' + b"[]," * (MAX_BATCH_BYTES // 3 - 10) + b"[]]}").ljust(MAX_BATCH_BYTES)
    floods = [
        request_head("PUT", "/v1/documents", None, [], b"x" * 10_000_000),
        request_head("POST", "/v1/batches", client.token, [KEY, (b"Content-Type", JSON)], lists),
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
