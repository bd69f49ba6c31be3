"""An application that fails before or in its answer to a short request: the connection ends, and soon."""

import asyncio
from typing import Any

import orjson
import pytest
import uvicorn
from uvicorn.server import ServerState

from portal import problems, short_requests
from portal.server import KEEP_ALIVE_SECONDS, Protocol
from support.raw_http import request_head

SHORT = request_head("POST", "/v1/jobs", None, [], b"{}")
SECONDS = 2.0
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}


async def raises(_scope: Any, _receive: Any, _send: Any) -> None:
    raise ValueError("at once")


async def returns(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


async def starts_and_raises(_scope: Any, _receive: Any, send: Any) -> None:
    await send(START)
    raise ValueError("after the start")


async def starts_and_returns(_scope: Any, _receive: Any, send: Any) -> None:
    await send(START)


async def starts_without_a_length(_scope: Any, _receive: Any, send: Any) -> None:
    await send({**START, "headers": []})


def all_that_comes(app: Any, *default_headers: tuple[bytes, bytes]) -> bytes:
    """Return what the server sends for a short request until it closes the connection."""

    async def ask() -> bytes:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
        state = ServerState()
        state.default_headers = list(default_headers)
        server = await asyncio.get_running_loop().create_server(
            lambda: Protocol(config, state, {}), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                writer.write(SHORT)
                return await asyncio.wait_for(reader.read(), SECONDS)
            finally:
                writer.close()

    return asyncio.run(ask())


def test_it_is_a_short_request_and_no_timer_ends_the_connection() -> None:
    assert short_requests.read(SHORT) is not None
    assert SECONDS < KEEP_ALIVE_SECONDS


@pytest.mark.parametrize("app", [raises, returns])
def test_without_a_start_the_answer_is_a_500(app: Any) -> None:
    head, _, body = all_that_comes(app).partition(b"\r\n\r\n")
    first, *fields = head.lower().split(b"\r\n")
    assert first == b"http/1.1 500 internal server error"
    assert {b"connection: close", b"content-length: %d" % len(body)} <= set(fields)
    assert orjson.loads(body) == problems.document(problems.Problem("internal"), None)


@pytest.mark.parametrize("app", [starts_and_raises, starts_and_returns, starts_without_a_length])
def test_after_the_start_the_connection_ends(app: Any) -> None:
    assert all_that_comes(app) == b"", "the head waits for the body"


def test_when_no_head_can_be_sent_the_connection_ends() -> None:
    assert all_that_comes(raises, (b"server", b"two\r\nlines")) == b""
