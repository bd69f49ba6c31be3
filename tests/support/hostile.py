"""Hostile requests, each with the problem that has to answer it: rows of a test and of a printed table."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portal.asked import MAX_BATCH_BYTES, MAX_JOB_BYTES, MAX_LINES_BYTES
from portal.wellformed import HEADER_BYTES
from support.raw_http import Headers, request_head

JSON = b"application/json"
KEY = (b"Idempotency-Key", b"k")
TYPE = (b"Content-Type", JSON)
BOMB = gzip.compress(b"0" * 10_000_000)
PIECE = 65_536  # bytes of one chunk


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request: its name, the slug of its answer, and its bytes for (token, digest of a stored document)."""

    name: str
    slug: str
    request: Callable[[str, str], bytes]


def good(digest: str, **fields: object) -> bytes:
    """Return a job that is taken."""
    return json.dumps({"document": digest, "kind": "page", **fields}).encode()


def with_field(digest: str, field: str) -> bytes:
    """Return a job with `field` (JSON text) added as it is written."""
    return good(digest)[:-1] + b", " + field.encode("utf-8", "surrogatepass") + b"}"


#: Bodies of POST /v1/jobs: name, the problem that answers, the body for the digest of a stored document.
BODIES: Sequence[tuple[str, str, Callable[[str], bytes]]] = [
    ("empty", "malformed-json", lambda _: b""),
    ("spaces", "malformed-json", lambda _: b"   "),
    ("null", "invalid-request", lambda _: b"null"),
    ("list", "invalid-request", lambda _: b"[]"),
    ("string", "invalid-request", lambda _: b'"x"'),
    ("trailing garbage", "malformed-json", lambda d: good(d) + b"x"),
    ("two documents", "malformed-json", lambda d: good(d) + good(d)),
    ("cut off", "malformed-json", lambda d: good(d)[:-1]),
    ("BOM", "malformed-json", lambda d: b"\xef\xbb\xbf" + good(d)),
    ("UTF-16", "malformed-json", lambda d: good(d).decode().encode("utf-16")),
    ("UTF-16 without BOM", "malformed-json", lambda d: good(d).decode().encode("utf-16-le")),
    ("UTF-32", "malformed-json", lambda d: good(d).decode().encode("utf-32")),
    ("invalid UTF-8", "malformed-json", lambda d: good(d)[:-1] + b',"title":"\xff"}'),
    ("overlong UTF-8", "malformed-json", lambda d: good(d)[:-1] + b',"title":"\xc0\x80"}'),
    ("raw surrogate", "malformed-json", lambda d: with_field(d, '"title": "\ud800"')),
    ("escaped surrogate", "invalid-request", lambda d: with_field(d, r'"title": "\ud800"')),
    ("surrogate key", "invalid-request", lambda d: with_field(d, r'"\udc00": 1')),
    ("NUL value", "invalid-request", lambda d: with_field(d, r'"title": "a\u0000b"')),
    ("NUL key", "invalid-request", lambda d: with_field(d, r'"a\u0000b": 1')),
    ("NUL deep", "invalid-request", lambda d: with_field(d, r'"simulate": {"a": [[["\u0000"]]]}')),
    ("raw NUL", "malformed-json", lambda d: with_field(d, '"title": "\0"')),
    ("control character", "malformed-json", lambda d: with_field(d, '"title": "\n"')),
    ("NaN", "malformed-json", lambda d: with_field(d, '"priority": NaN')),
    ("Infinity", "malformed-json", lambda d: with_field(d, '"priority": -Infinity')),
    ("1e400", "invalid-request", lambda d: with_field(d, '"priority": 1e400')),
    ("float", "invalid-request", lambda d: with_field(d, '"priority": 1.10')),
    ("2^53+1", "invalid-request", lambda d: with_field(d, '"priority": 9007199254740993')),
    ("2^63", "invalid-request", lambda d: with_field(d, '"max_attempts": 9223372036854775808')),
    ("2^64", "invalid-request", lambda d: with_field(d, '"max_attempts": 18446744073709551616')),
    ("30 digits", "invalid-request", lambda d: with_field(d, '"priority": ' + "9" * 30)),
    ("5000 digits", "invalid-request", lambda d: with_field(d, '"priority": ' + "9" * 5000)),
    ("minus one", "invalid-request", lambda d: with_field(d, '"priority": -1')),
    ("boolean for number", "invalid-request", lambda d: with_field(d, '"priority": true')),
    ("text for number", "invalid-request", lambda d: with_field(d, '"priority": "5"')),
    ("unknown field", "invalid-request", lambda d: with_field(d, '"team": "other"')),
    ("unknown simulate", "invalid-request", lambda d: with_field(d, '"simulate": {"exec": "x"}')),
    ("unknown kind", "invalid-request", lambda d: good(d, kind="video")),
    ("201 characters", "invalid-request", lambda d: good(d, title="x" * 201)),
    ("no document", "invalid-request", lambda _: b'{"kind": "page"}'),
    ("digest in capitals", "invalid-request", lambda d: good(d.upper())),
    ("digest and newline", "invalid-request", lambda d: good(d + "\n")),
    ("duplicate key", "invalid-request", lambda d: with_field(d, '"kind": "thumbnail"')),
    ("duplicate escaped", "invalid-request", lambda d: with_field(d, r'"\u006bind": "thumbnail"')),
    (
        "duplicate nested",
        "invalid-request",
        lambda d: with_field(d, '"simulate": {"hang": true, "hang": false}'),
    ),
    ("33 names", "invalid-request", lambda d: with_field(d, ", ".join(f'"x{n}": 1' for n in range(33)))),
    ("50 lists", "malformed-json", lambda d: with_field(d, '"title": ' + "[" * 50 + "]" * 50)),
    ("1000 lists", "malformed-json", lambda d: with_field(d, '"title": ' + "[" * 1000 + "]" * 1000)),
    ("20000 lists", "malformed-json", lambda d: with_field(d, '"title": ' + "[" * 20_000 + "]" * 20_000)),
    ("unclosed lists", "malformed-json", lambda _: b"[" * 60_000),
    ("unclosed objects", "malformed-json", lambda _: b'{"a":' * 12_000),
    ("over the limit", "too-large", lambda d: good(d) + b" " * (MAX_JOB_BYTES + 1 - len(good(d)))),
]


def _job(headers: Headers, body: Callable[[str], bytes] = good) -> Callable[[str, str], bytes]:
    return lambda token, digest: request_head("POST", "/v1/jobs", token, headers, body(digest))


def _bodies() -> list[Hostile]:
    return [Hostile(f"body: {name}", slug, _job([KEY, TYPE], make)) for name, slug, make in BODIES]


CONTENT_TYPES: Sequence[bytes | None] = (
    None, b"", b"text/plain", b"application/problem+json", b"multipart/form-data; boundary=x",
    b"application/json; charset=utf-16", b"application/json;charset=latin-1", b"application/x-ndjson",
    b"application/json, application/json",
)  # fmt: skip


def _types() -> list[Hostile]:
    return [
        Hostile(
            f"Content-Type: {'(none)' if given is None else given.decode()}",
            "unsupported-media-type",
            _job([KEY] if given is None else [KEY, (b"Content-Type", given)]),
        )
        for given in CONTENT_TYPES
    ]


ENCODINGS = (b"gzip", b"GZIP", b"br", b"gzip, gzip", b"identity, gzip", b"rot13")


def _encodings() -> list[Hostile]:
    def bomb(method: str, path: str, media_type: bytes, encoding: bytes) -> Callable[[str, str], bytes]:
        headers = [KEY, (b"Content-Type", media_type), (b"Content-Encoding", encoding)]
        return lambda token, _: request_head(method, path, token, headers, BOMB)

    return [
        Hostile(f"bomb, {encoding.decode()}: {method} {path}", "unsupported-media-type", made)
        for method, path, media_type in (
            ("POST", "/v1/jobs", JSON),
            ("PUT", "/v1/documents", b"application/octet-stream"),
        )
        for encoding in ENCODINGS
        for made in [bomb(method, path, media_type, encoding)]
    ]


#: Content-Length of a job that is some 110 bytes long.
LENGTHS = (
    (b"-1", "malformed-http"), (b"1e3", "malformed-http"), (b"9" * 30, "malformed-http"),
    (b"5\r\nContent-Length: 6", "malformed-http"), (b"99999999", "too-large"), (b"10", "malformed-json"),
)  # fmt: skip


def _lengths() -> list[Hostile]:
    def lying(length: bytes) -> Callable[[str, str], bytes]:
        def request(token: str, digest: str) -> bytes:
            headers = [KEY, TYPE, (b"Content-Length", length)]
            return request_head("POST", "/v1/jobs", token, headers) + good(digest)

        return request

    return [
        Hostile(f"Content-Length: {length.decode().replace(chr(13) + chr(10), ', ')}", slug, lying(length))
        for length, slug in LENGTHS
    ]


def chunked(size: int) -> bytes:
    """Return at least `size` spaces in chunks."""
    count = size // PIECE + 1
    return (b"%x\r\n%s\r\n" % (PIECE, b" " * PIECE)) * count + b"0\r\n\r\n"


def _chunked() -> list[Hostile]:
    def endless(path: str, limit: int) -> Callable[[str, str], bytes]:
        headers = [KEY, TYPE, (b"Transfer-Encoding", b"chunked")]
        return lambda token, _: request_head("POST", path, token, headers) + chunked(limit + 20 * PIECE)

    return [
        Hostile(f"chunks beyond the limit: {path}", "too-large", endless(path, limit))
        for path, limit in (("/v1/jobs", MAX_JOB_BYTES), ("/v1/batches", MAX_BATCH_BYTES))
    ]


KEYS: Sequence[tuple[str, Headers]] = (
    ("none", []),
    ("empty", [(KEY[0], b"")]),
    ("blank", [(KEY[0], b"   ")]),
    ("two", [KEY, KEY]),
    ("two in one", [(KEY[0], b"a, b")]),
    ("256 characters", [(KEY[0], b"x" * 256)]),
    ("no ASCII", [(KEY[0], "schlüssel".encode())]),
)


def _keys() -> list[Hostile]:
    return [
        Hostile(f"Idempotency-Key: {name}", "idempotency-key", _job([*given, TYPE])) for name, given in KEYS
    ]


def _framed(version: bytes, *headers: tuple[bytes, bytes]) -> Callable[[str, str], bytes]:
    """Return a job in one chunk, of that version, with these headers besides."""

    def request(token: str, digest: str) -> bytes:
        body = good(digest)
        head = request_head("POST", "/v1/jobs", token, [KEY, TYPE, *headers])
        return head.replace(b"HTTP/1.1", version, 1) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

    return request


CHUNKED = (b"Transfer-Encoding", b"chunked")


def _framing() -> list[Hostile]:
    return [
        Hostile(name, "malformed-http", request)
        for name, request in (
            ("chunks and a length", _framed(b"HTTP/1.1", CHUNKED, (b"Content-Length", b"5"))),
            ("chunks in HTTP/1.0", _framed(b"HTTP/1.0", CHUNKED)),
            ("gzip and chunks", _framed(b"HTTP/1.1", (CHUNKED[0], b"gzip, chunked"))),
            ("HTTP/2.0", _framed(b"HTTP/2.0", CHUNKED)),
            ("HTTP/9.9", _framed(b"HTTP/9.9", CHUNKED)),
            ("no version", lambda _, __: b"GET /v1/jobs\r\n\r\n"),
            ("no Host", lambda _, __: b"GET /v1/jobs HTTP/1.1\r\n\r\n"),
            ("two Hosts", lambda _, __: b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
            ("a letter that is none", lambda _, __: b"GET /v1/jobs/\xff HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("NUL in a header", lambda _, __: b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n"),
            ("space before the colon", lambda _, __: b"GET /v1/jobs HTTP/1.1\r\nHost : a\r\n\r\n"),
        )
    ]


def _heads() -> list[Hostile]:
    def head(path: str, headers: Headers) -> Callable[[str, str], bytes]:
        return lambda token, _: request_head("GET", path, token, headers)

    def nobody(token: str | None) -> Callable[[str, str], bytes]:
        return lambda _, __: request_head("PUT", "/v1/documents", token, [], b"x" * 10_000_000)

    return [
        Hostile("a header of 20 kB", "headers-too-large", head("/v1/jobs", [(b"X", b"x" * 20_000)])),
        Hostile(
            "100 headers of 200 bytes", "headers-too-large", head("/v1/jobs", [(b"X", b"x" * 200)] * 100)
        ),
        Hostile("3000 headers of 2 bytes", "headers-too-large", head("/v1/jobs", [(b"X", b"x")] * 3000)),
        Hostile("an address of 17 kB", "headers-too-large", head("/" + "x" * (HEADER_BYTES + 1000), [])),
        Hostile("no HTTP", "malformed-http", lambda _, __: b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"),
        Hostile("10 MB without a token", "unauthenticated", nobody(None)),
        Hostile("10 MB with a wrong token", "unauthenticated", nobody("wrong-token-wrong-token")),
    ]


NDJSON = b"application/x-ndjson"
LEVELS = b"[" * 1_000_000
#: Bodies of POST /v1/batches: name, the problem that answers, the type, the body.
BATCHES: Sequence[tuple[str, str, bytes, Callable[[str], bytes]]] = [
    ("BOM", "malformed-json", JSON, lambda d: b"\xef\xbb\xbf" + many(d)),
    ("no jobs", "invalid-request", JSON, lambda _: b'{"jobs": []}'),
    ("1,000,000 levels", "invalid-request", JSON, lambda _: LEVELS + b"]" * len(LEVELS)),
    ("1,000,000 levels of jobs", "invalid-request", JSON, lambda _: b'{"jobs":' + LEVELS),
    ("1,000,000 objects", "invalid-request", JSON, lambda _: b'{"":' * 1_000_000),
    ("at the limit, empty", "malformed-json", JSON, lambda _: b" " * MAX_BATCH_BYTES),
    ("over the limit", "too-large", JSON, lambda d: many(d).ljust(MAX_BATCH_BYTES + 1)),
    ("lines, BOM", "malformed-json", NDJSON, lambda d: b"\xef\xbb\xbf" + good(d) + b"\n"),
    ("lines, BOM of the second", "malformed-json", NDJSON, lambda d: good(d) + b"\n\xef\xbb\xbf" + good(d)),
    ("lines, UTF-16", "malformed-json", NDJSON, lambda d: good(d).decode().encode("utf-16")),
    ("lines, duplicate key", "invalid-request", NDJSON, lambda d: with_field(d, '"kind": "thumbnail"')),
    ("lines, NUL value", "invalid-request", NDJSON, lambda d: with_field(d, r'"title": "\u0000"')),
    ("lines, raw NUL", "malformed-json", NDJSON, lambda d: good(d) + b"\0\n"),
    (
        "lines, 50 levels",
        "malformed-json",
        NDJSON,
        lambda d: with_field(d, '"title": ' + "[" * 50 + "]" * 50),
    ),
    ("lines, 1,000,000 levels", "invalid-request", NDJSON, lambda d: good(d) + b"\n" + LEVELS),
    ("lines, two jobs in one", "malformed-json", NDJSON, lambda d: good(d) + good(d)),
    ("lines, a list", "invalid-request", NDJSON, lambda d: b"[" + good(d) + b"]"),
    ("lines, blank", "invalid-request", NDJSON, lambda _: b"\n \r\n\n"),
    ("lines, 10,001", "invalid-request", NDJSON, lambda d: (good(d) + b"\n") * 10_001),
    ("lines, at the limit, blank", "invalid-request", NDJSON, lambda _: b"\n" * MAX_LINES_BYTES),
    ("lines, over the limit", "too-large", NDJSON, lambda d: good(d).ljust(MAX_LINES_BYTES + 1)),
]


def many(digest: str) -> bytes:
    """Return a batch of one job that is taken."""
    return b'{"jobs": [' + good(digest) + b"]}"


def _batches() -> list[Hostile]:
    def asked(media_type: bytes, make: Callable[[str], bytes]) -> Callable[[str, str], bytes]:
        headers = [KEY, (TYPE[0], media_type)]
        return lambda token, digest: request_head("POST", "/v1/batches", token, headers, make(digest))

    return [
        Hostile(f"batch: {name}", slug, asked(media_type, make)) for name, slug, media_type, make in BATCHES
    ]


#: All that are answered at once.
REQUESTS: Sequence[Hostile] = [
    *_bodies(), *_types(), *_encodings(), *_lengths(), *_chunked(), *_keys(), *_framing(),
    *_heads(), *_batches(),
]  # fmt: skip
#: Those that are answered when their time is over, 10 s.
SLOW: Sequence[Hostile] = [
    Hostile(
        "a body that does not come",
        "too-slow",
        lambda token, _: request_head("POST", "/v1/jobs", token, [KEY, TYPE, (b"Content-Length", b"3000")]),
    ),
    Hostile(
        "headers that do not come", "too-slow", lambda _, __: b"POST /v1/jobs HTTP/1.1\r\nHost: test\r\n"
    ),
]


def flood_of_lists() -> bytes:
    """Return a batch of the largest size that would make the most of memory."""
    return (b'{"jobs":[' + b"[]," * (MAX_BATCH_BYTES // 3 - 10) + b"[]]}").ljust(MAX_BATCH_BYTES)
