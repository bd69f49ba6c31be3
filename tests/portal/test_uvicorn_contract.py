"""What portal/server.py and portal/short_requests.py rely on inside uvicorn 0.54 and h11 0.16.

Read a new version before the pin moves.
"""

import asyncio
import inspect
import logging
from importlib.metadata import version
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState


async def app(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


def protocol() -> H11Protocol:
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    loop = asyncio.new_event_loop()
    loop.close()  # it is only kept
    return H11Protocol(config, ServerState(), {"a": 1}, loop)


def test_the_versions_are_those_that_were_read() -> None:
    assert version("uvicorn").startswith("0.54.")
    assert version("h11").startswith("0.16.")


def test_a_cycle_takes_what_it_took() -> None:
    assert list(inspect.signature(RequestResponseCycle.__init__).parameters) == [
        "self", "scope", "conn", "transport", "flow", "logger", "access_logger", "access_log",
        "default_headers", "message_event", "on_response",
    ]  # fmt: skip


def test_a_cycle_holds_what_a_short_one_sets_and_reads() -> None:
    event = asyncio.Event()
    given: dict[str, Any] = {
        "scope": {},
        "conn": h11.Connection(h11.SERVER),
        "transport": object(),
        "flow": object(),
        "logger": logging.getLogger("x"),
        "access_logger": logging.getLogger("x"),
        "access_log": False,
        "default_headers": [(b"a", b"b")],
        "message_event": event,
        "on_response": print,
    }
    fields = vars(RequestResponseCycle(**given))
    assert {name: fields[name] for name in given} == given
    own = {name: value for name, value in fields.items() if name not in given}
    assert own == {
        "disconnected": False,
        "keep_alive": True,
        "waiting_for_100_continue": False,
        "body": bytearray(),
        "more_body": True,
        "response_started": False,
        "response_complete": False,
    }


def test_what_a_short_cycle_replaces_is_what_the_rest_of_a_cycle_calls() -> None:
    run = inspect.getsource(RequestResponseCycle.run_asgi)
    assert "self.scope, self.receive, self.send" in run
    assert run.count("await self.send_500_response()") == 2
    assert inspect.iscoroutinefunction(RequestResponseCycle.send_500_response)
    assert list(inspect.signature(RequestResponseCycle.send).parameters) == ["self", "message"]
    receive = inspect.getsource(RequestResponseCycle.receive)
    assert "await self.message_event.wait()" in receive
    assert '"body": bytes(self.body), "more_body": self.more_body' in receive


def test_a_protocol_holds_what_ours_reads() -> None:
    held = protocol()
    assert held.app_state == {"a": 1}
    assert held.tasks == set()
    assert held.tasks is held.server_state.tasks
    assert held.server_state.default_headers == []
    assert held.timeout_keep_alive_task is None
    assert {
        "app", "loop", "conn", "transport", "flow", "server", "client", "scheme", "scope", "headers", "cycle",
        "asgi_version", "root_path", "logger", "access_logger", "access_log",
    } <= vars(held).keys()  # fmt: skip
    assert held.cycle is None, "no cycle has begun"
    assert {"write_paused", "drain", "pause_reading", "resume_reading"} <= vars(FlowControl).keys() | vars(
        FlowControl(object())  # type: ignore[arg-type]
    ).keys()


def test_a_protocol_calls_what_ours_replaces() -> None:
    for method, parameters in (
        (H11Protocol.connection_made, ["self", "transport"]),
        (H11Protocol.data_received, ["self", "data"]),
        (H11Protocol.connection_lost, ["self", "exc"]),
        (H11Protocol.on_response_complete, ["self"]),
        (H11Protocol.send_400_response, ["self", "msg"]),
        (H11Protocol._unset_keepalive_if_required, ["self"]),
    ):
        assert list(inspect.signature(method).parameters) == parameters
    events = inspect.getsource(H11Protocol.handle_events)
    assert "self.send_400_response(msg)" in events
    assert "on_response=self.on_response_complete" in events
    ended = inspect.getsource(H11Protocol.on_response_complete)
    assert "self.transport.is_closing()" in ended
    assert "self.flow.resume_reading()" in ended, "ours paused it"


def test_a_connection_of_h11_tells_that_it_has_nothing_in_hand() -> None:
    conn = protocol().conn
    assert conn.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
    assert conn.trailing_data == (b"", False)
    conn.receive_data(b"PO")
    assert conn.trailing_data == (b"PO", False)
    assert conn.their_state is h11.IDLE, "half a head changes only trailing_data"
