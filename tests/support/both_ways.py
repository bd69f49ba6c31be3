"""One application, asked through its door by the long way and by the express."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from starlette.types import ASGIApp

from portal.app import create, doored
from portal.door import Door
from runtime.settings import Settings
from support.team import House

JOBS = "/v1/jobs"
#: Status, headers, body.
Answer = tuple[int, dict[bytes, bytes], bytes]
Head = list[tuple[bytes, bytes]]
#: The body in its pieces; None is a client that leaves before its body came.
Body = bytes | Sequence[bytes] | None


@asynccontextmanager
async def both(house: House, blobs: Path, **settings: Any) -> AsyncIterator[tuple[ASGIApp, ASGIApp]]:
    """Serve one application twice: behind its door alone, and with its express before it."""
    url = SecretStr(house.database.url("portal"))
    app = create(Settings(database_url=url, blobs=blobs, simulation=False, **settings))
    async with app.router.lifespan_context(app):
        yield Door(app), doored(app)


async def ask(
    app: ASGIApp,
    headers: Head,
    body: Body,
    query: bytes = b"",
    *,
    method: str = "POST",
    path: str = JOBS,
    receive: Callable[[], Awaitable[dict[str, Any]]] | None = None,
) -> Answer:
    """Ask for a job, or for what else `method` and `path` say; `receive` in place of a body that is there."""
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query, "root_path": "", "state": {}, "server": ("test", 80), "scheme": "http",
        "headers": [(name.lower(), value) for name, value in headers],
    }  # fmt: skip
    pieces = None if body is None else [body] if isinstance(body, bytes) else list(body)
    sent: list[Any] = []

    async def given() -> dict[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive or given, send)
    start = sent[0] if sent else {"status": 0, "headers": []}
    return start["status"], dict(start["headers"]), b"".join(m.get("body", b"") for m in sent[1:])
