"""Express: the short way to an endpoint, and the one through FastAPI, answer the same."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from portal import asked, bodies
from support.both_ways import JOBS, Answer, Body, Head, ask, both
from support.hostile import CONTENT_TYPES, ENCODINGS, KEYS, REQUESTS, TYPE, good, with_field
from support.raw_http import connect, read_answer, request_head
from support.team import Client, House

CHANGES = re.compile(
    rb'"trace":"[0-9a-f]+"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|"(created|updated)_at":"[^"]+"'
)
KEY = (b"Idempotency-Key", b"k")
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


def told(answer: Answer) -> Answer:
    """Return the answer without what is another one's each time."""
    status, headers, body = answer
    kept = {name: CHANGES.sub(b"", value) for name, value in headers.items() if name != b"ratelimit"}
    return status, kept, CHANGES.sub(b"", body)


def bearer(client: Client) -> tuple[bytes, bytes]:
    return b"Authorization", b"Bearer " + client.token.encode()


def keyed(headers: Head, key: bytes) -> Head:
    """Return the headers with another key, if they have exactly one that can be."""
    return [(KEY[0], key) if field == KEY and headers.count(KEY) == 1 else field for field in headers]


def problem(answer: Answer) -> tuple[int, str]:
    found = re.search(rb'"type":"/problems/([a-z-]+)"', answer[2])
    return answer[0], found[1].decode() if found else ""


def _bodies(digest: str) -> list[bytes]:
    rows = [
        row.request("t", digest).partition(b"\r\n\r\n")[2]
        for row in REQUESTS
        if row.name.startswith("body: ")
    ]
    return [
        *rows,
        good(digest),
        good(digest, priority=9),
        good("sha256:" + "1" * 64),
        with_field(digest, '"simulate": {}'),
    ]


def _heads(client: Client, reader: Client, digest: str) -> list[tuple[Head, Body, bytes]]:
    """Return what is told by headers and framing, each with the body of a job that would be taken."""
    mine, body = bearer(client), good(digest)
    length = (b"Content-Length", b"%d" % len(body))
    types = [(b"Content-Type", given) for given in CONTENT_TYPES if given is not None]
    types += [
        (b"Content-Type", given) for given in (b"Application/JSON; charset=UTF-8", b"application/json;")
    ]
    heads: list[Head] = [
        [KEY, TYPE],
        [KEY, TYPE, length],  # the body stays where it is, and the connection ends
        [KEY, TYPE, (b"Transfer-Encoding", b"chunked")],
        [(b"Authorization", b"Bearer wrong-wrong"), KEY, TYPE, length],
        [(b"Authorization", b"Basic eDp5"), KEY, TYPE],
        [bearer(reader), KEY, TYPE, length],
        [mine, mine, KEY, TYPE],
        [mine, KEY],
        [mine, KEY, TYPE, length, (b"Expect", b"100-continue")],
        [mine, KEY, TYPE, TYPE],
        [mine, KEY, TYPE, (b"Content-Length", b"99999999")],
        [mine, KEY, TYPE, (b"Content-Encoding", b"identity")],
        [mine, KEY, TYPE, (b"Accept", b"text/html"), (b"Origin", b"https://elsewhere.example")],
        [mine, KEY, TYPE, (b"X", b"x" * 20_000)],
        *([mine, *keys, TYPE, length] for _, keys in KEYS),
        *([mine, KEY, given] for given in types),
        *([mine, KEY, TYPE, (b"Content-Encoding", given), length] for given in ENCODINGS),
    ]
    pieces = [body[n : n + 7] for n in range(0, len(body), 7)]
    return [
        *((head, body, b"") for head in heads),
        ([mine, KEY, TYPE], body, b"a=1&a=2"),
        ([mine, KEY, TYPE], body, b"a=1&kind=x"),
        ([mine, KEY, TYPE, (b"Transfer-Encoding", b"chunked")], [*pieces, b""], b""),
        ([mine, KEY, TYPE, (b"Transfer-Encoding", b"chunked")], [body, *[b" " * 9_000] * 8], b""),
    ]


def test_both_ways_answer_the_same(house: House, tmp_path: Path) -> None:
    client, reader = house.client(), house.client("read")
    digest = client.put()

    async def compare() -> set[int]:
        seen = set[int]()
        async with both(house, tmp_path / "blobs") as (long, short):
            requests = _heads(client, reader, digest)
            requests += [([bearer(client), KEY, TYPE], body, b"") for body in _bodies(digest)]
            for n, (headers, body, query) in enumerate(requests):
                # The same key again would be a replay: another answer, and the same job.
                theirs, mine = keyed(headers, b"theirs-%d" % n), keyed(headers, b"mine-%d" % n)
                expected = told(await ask(long, theirs, body, query))
                assert told(await ask(short, mine, body, query)) == expected, (headers, str(body)[:80])
                seen.add(expected[0])
            head = [bearer(client), (KEY[0], b"again"), TYPE]
            ways = (short, short, long, short)
            again = [await ask(way, head, good(digest)) for way in ways]
            assert len({(status, body) for status, _, body in again}) == 1, "one job"
            assert [headers.get(b"idempotent-replayed") for _, headers, _ in again] == [None, *[b"true"] * 3]
            for way in (long, short):
                assert problem(await ask(way, head, good(digest, priority=9))) == (422, "key-reused")
        return seen

    assert asyncio.run(compare()) >= {202, 400, 401, 403, 413, 415, 422, 431}


METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "post", "POST")
PATHS = ("/v1/jobs", "/v1/jobs/", "/v1/Jobs", "/v1//jobs", "/jobs", "http://test/v1/jobs", "http://test")


def test_other_methods_and_addresses_are_as_they_were(house: House, tmp_path: Path) -> None:
    client = house.client()
    digest = client.put()

    async def compare() -> dict[tuple[str, str], int]:
        seen: dict[tuple[str, str], int] = {}
        async with both(house, tmp_path / "blobs") as (long, short):
            for method, path in ((method, path) for path in PATHS for method in METHODS):
                answers = [
                    await ask(
                        way, [bearer(client), (KEY[0], name + path.encode()), TYPE], good(digest),
                        method=method, path=path,
                    )
                    for way, name in ((long, b"long"), (short, b"short"))
                ]  # fmt: skip
                theirs, mine = (told(answer) for answer in answers)
                assert mine == theirs, (method, path)
                seen[method, path] = mine[0]
        return seen

    seen = asyncio.run(compare())
    assert {target for target, status in seen.items() if status == 202} == {
        ("POST", "/v1/jobs"), ("POST", "http://test/v1/jobs"),
    }  # fmt: skip
    assert [seen[method, "/v1/jobs"] for method in METHODS] == [200, 200, *[405] * 6, 202]


def test_trouble_is_told_alike(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = house.client()
    digest = client.put()
    admin = house.database.admin

    async def each() -> list[Answer]:
        async with both(house, tmp_path) as ways:
            return [told(await ask(way, [bearer(client), KEY, TYPE], good(digest))) for way in ways]

    def answered() -> tuple[int, str]:
        theirs, mine = asyncio.run(each())
        assert mine == theirs
        return problem(mine)

    with house.database.server.connect(house.database.name) as holder:
        holder.execute("BEGIN")
        holder.execute(LOCK, [f"{client.team}|k"])
        assert answered() == (409, "key-busy")
    admin.execute("UPDATE teams SET max_backlog = 0 WHERE id = %s", [client.team])
    assert answered() == (429, "backlog-full")
    admin.execute("ALTER FUNCTION accept_each RENAME TO accept_none")
    try:
        assert answered() == (503, "database-unavailable")
    finally:
        admin.execute("ALTER FUNCTION accept_none RENAME TO accept_each")

    def mistaken(_: bytearray) -> Any:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(asked, "one", mistaken)  # no request can make one
    assert answered() == (500, "internal")


def test_a_team_that_asks_too_fast_is_told_so_either_way(house: House, tmp_path: Path) -> None:
    client = house.client()

    async def compare() -> None:
        async with both(house, tmp_path, team_requests_per_second=0.001) as (long, short):
            head = [bearer(client), KEY, TYPE]
            assert (await ask(short, head, b"{}"))[0] == 422
            theirs, mine = await ask(long, head, b"{}"), await ask(short, head, b"{}")
            assert problem(mine) == (429, "rate-limited")
            assert told(mine) == told(theirs)
            assert b"ratelimit" in mine[1]
            assert b"ratelimit" in theirs[1]

    asyncio.run(compare())


def test_time_that_is_over_is_told_either_way(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = house.client()
    monkeypatch.setattr(bodies, "GRACE_SECONDS", 0.05)

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable: nobody sets it")

    async def compare() -> None:
        async with both(house, tmp_path) as ways:
            head = [bearer(client), KEY, TYPE, (b"Content-Length", b"3000")]
            theirs, mine = [told(await ask(way, head, b"", receive=never)) for way in ways]
            assert problem(mine) == (408, "too-slow")
            assert mine == theirs
            monkeypatch.setattr(bodies, "GRACE_SECONDS", 60.0)
            stopped: list[Answer] = []
            for way in ways:
                begun = asyncio.Event()

                async def begin(begun: asyncio.Event = begun) -> dict[str, Any]:
                    begun.set()
                    return await never()

                task = asyncio.create_task(ask(way, head[:-1], b"", receive=begin))
                await begun.wait()
                task.cancel()  # as a server does with who is left when the grace of its stop is over
                stopped.append(told(await task))
            theirs, mine = stopped
            assert problem(mine) == (503, "overloaded")
            assert mine == theirs

    asyncio.run(compare())


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(house: House) -> None:
    client = house.client()
    body = good(client.put())
    head = [KEY, TYPE, (b"Content-Length", b"%d" % len(body)), (b"Expect", b"100-continue")]
    with connect(client.url) as waiting:
        waiting.sendall(request_head("POST", JOBS, client.token, head))
        file = waiting.makefile("rb")
        assert file.readline().split()[1] == b"100"
        assert file.readline() == b"\r\n"
        waiting.sendall(body)
        assert read_answer(waiting)[0] == 202
    with connect(client.url) as refused:
        refused.sendall(request_head("POST", JOBS, "wrong-token-wrong-token", head))
        assert read_answer(refused)[0] == 401
