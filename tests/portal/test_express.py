"""Express: the short way to an endpoint, and the one through FastAPI, answer the same."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from starlette.types import ASGIApp

from portal.app import create, doored
from portal.door import Door
from runtime import metrics
from runtime.settings import Settings
from support.hostile import REQUESTS, TYPE, good, with_field
from support.team import House

JOBS = "/v1/jobs"
CHANGES = re.compile(
    rb'"trace":"[0-9a-f]+"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|"(created|updated)_at":"[^"]+"'
)
Answer = tuple[int, dict[bytes, bytes], bytes]


@asynccontextmanager
async def both(house: House, blobs: Path) -> AsyncIterator[tuple[ASGIApp, ASGIApp]]:
    """Serve one application twice: behind its door alone, and with its express before it."""
    url = SecretStr(house.database.url("portal"))
    app = create(Settings(database_url=url, blobs=blobs, simulation=False))
    async with app.router.lifespan_context(app):
        yield Door(app), doored(app)


async def ask(
    app: ASGIApp, headers: list[tuple[bytes, bytes]], body: bytes | None, query: bytes = b""
) -> Answer:
    """POST a job; `body` None is a client that leaves before its body came."""
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": JOBS, "raw_path": JOBS.encode(),
        "query_string": query, "root_path": "", "state": {}, "server": ("test", 80), "scheme": "http",
        "headers": [(name.lower(), value) for name, value in headers],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0] if sent else {"status": 0, "headers": []}
    text = b"".join(message.get("body", b"") for message in sent[1:])
    told = {name: CHANGES.sub(b"", value) for name, value in start["headers"]}
    told.pop(b"ratelimit", None)
    return start["status"], told, CHANGES.sub(b"", text)


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


def test_both_ways_answer_the_same(house: House, tmp_path: Path) -> None:
    client, reader = house.client(), house.client("read")
    digest = client.put()
    bearer = (b"Authorization", b"Bearer " + client.token.encode())
    key = (b"Idempotency-Key", b"k")
    heads: list[tuple[list[tuple[bytes, bytes]], bytes]] = [
        ([key, TYPE], b""),
        ([(b"Authorization", b"Bearer wrong-wrong"), key, TYPE], b""),
        ([(b"Authorization", b"Bearer " + reader.token.encode()), key, TYPE], b""),
        ([bearer, bearer, key, TYPE], b""),
        ([bearer, TYPE], b""),
        ([bearer, key, key, TYPE], b""),
        ([bearer, key], b""),
        ([bearer, key, TYPE], b"a=1&a=2"),
        ([bearer, key, TYPE, (b"Content-Encoding", b"gzip")], b""),
        ([bearer, key, TYPE, (b"Content-Length", b"99999999")], b""),
    ]

    async def compare() -> set[int]:
        seen = set[int]()
        async with both(house, tmp_path / "blobs") as (long, short):
            asked = [(head, good(digest), query) for head, query in heads]
            asked += [
                ([bearer, (b"Idempotency-Key", b"body-%d" % n), TYPE], body, b"")
                for n, body in enumerate(_bodies(digest))
            ]
            for headers, body, query in asked:
                theirs = await ask(long, headers, body, query)
                # The same key again would be a replay: another answer, and the same job.
                mine = (key[0], b"mine-%d" % len(body))
                other = [mine if field[0] == key[0] and theirs[0] == 202 else field for field in headers]
                assert await ask(short, other, body, query) == theirs, (headers, body[:80])
                seen.add(theirs[0])
            for _ in range(2):
                again = await ask(short, [bearer, (b"Idempotency-Key", b"again"), TYPE], good(digest))
                assert await ask(long, [bearer, (b"Idempotency-Key", b"again"), TYPE], good(digest)) == (
                    again[0], {**again[1], b"idempotent-replayed": b"true"}, again[2],
                )  # fmt: skip
        return seen

    assert asyncio.run(compare()) >= {202, 400, 401, 403, 413, 415, 422}


def test_who_leaves_before_the_end_is_counted_as_such_either_way(house: House, tmp_path: Path) -> None:
    client = house.client()
    headers = [(b"Authorization", b"Bearer " + client.token.encode()), (b"Idempotency-Key", b"gone"), TYPE]

    async def leave() -> None:
        async with both(house, tmp_path / "blobs") as apps:
            for app in apps:
                await ask(app, headers, None)

    before = answers()
    asyncio.run(leave())
    assert answers() - before == Counter({"499": 2})


def answers() -> Counter[str]:
    """Return how often each status was counted in this process for POST /v1/jobs."""
    counted = re.compile(
        r'^http_requests_total\{method="POST",route="/v1/jobs",status="(\d+)"\} (\d+)\.0$', re.MULTILINE
    )
    return Counter({status: int(times) for status, times in counted.findall(metrics.exposition().decode())})
