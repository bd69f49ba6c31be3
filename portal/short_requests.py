"""Short requests: a job's POST that comes whole and in its plainest form is read and answered without h11.

h11 costs such a request a third of its time. What is read here is a part of what h11 takes, and is read the
same; all else (another route, a request in pieces or two in one, a framing that could be read in two ways, a
letter that is seldom in a header) is h11's, which is not told of what was read here and finds its connection
idle. tests/portal/test_short_requests.py lets h11 read what is read here, and compares.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from portal import problems
from portal.problems import Problem
from portal.wellformed import HEADER_BYTES

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

Headers = list[tuple[bytes, bytes]]

METHOD, PATH = "POST", "/v1/jobs"
_LINE = f"{METHOD} {PATH} HTTP/1.1\r\n".encode()
_END = b"\r\n\r\n"
#: Names are tokens (RFC 9110, 5.6.2), values visible ASCII with blanks between.
_HEAD = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e]*\r\n)+")
_FIELD = re.compile(rb"([^:]+):([^\r]*)\r\n")
_LENGTH = re.compile(rb"[0-9]{1,8}")
#: What says how a message or a connection goes on: that is h11's to understand.
_OTHERS = frozenset({b"connection", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
_KEEP_ALIVE = (b"connection", b"keep-alive")
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def read(data: bytes) -> tuple[Headers, bytes] | None:
    """Return the headers (names in lower case) and the body of a short request, None when it is none."""
    if not data.startswith(_LINE):
        return None
    end = data.find(_END) + 2
    if not len(_LINE) < end <= HEADER_BYTES or _HEAD.fullmatch(data, len(_LINE), end) is None:
        return None
    headers = [(name.lower(), value.strip(b"\t ")) for name, value in _FIELD.findall(data, len(_LINE), end)]
    given = dict(headers)
    length = given.get(b"content-length", b"")
    once = len(given) == len(headers) or _once(headers, b"host", b"content-length")
    if not once or b"host" not in given or _LENGTH.fullmatch(length) is None:
        return None
    if not _OTHERS.isdisjoint(given) and not all(
        field == _KEEP_ALIVE for field in headers if field[0] in _OTHERS
    ):
        return None
    body = data[end + 2 :]
    return (headers, body) if len(body) == int(length) else None


def _once(headers: Headers, *names: bytes) -> bool:
    return all(sum(name == given for given, _ in headers) == 1 for name in names)


class ShortCycle(RequestResponseCycle):
    """The answer to a short request: head and body in one piece, the same bytes as h11's."""

    def __init__(self, *, body: bytes, **given: Any) -> None:
        super().__init__(**given)
        self.waiting_for_100_continue = False
        self.body = bytearray(body)
        self.more_body = False
        self.message_event.set()
        self._head = b""

    async def send(self, message: "ASGISendEvent") -> None:
        """Take a message of the application; what it sends has a Content-Length.

        Raises:
            RuntimeError: it has none, or a header's value would be two lines.

        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self.response_started = True
            self._head = self._lines(message["status"], [*self.default_headers, *message.get("headers", [])])
            return
        if message["type"] != "http.response.body" or not self.response_started or self.response_complete:
            raise RuntimeError(f"{message['type']} at this time")
        self.transport.write(self._head + message.get("body", b""))
        self._head = b""
        if not message.get("more_body", False):
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    async def send_500_response(self) -> None:
        """Answer for an application that did not: uvicorn's own answer has no Content-Length.

        No timer runs while an answer is awaited: the connection ends here, whatever becomes of the answer.
        """
        problem = Problem("internal")
        body = problems.encoded(problem, None)
        try:
            await self.send(
                {
                    "type": "http.response.start",
                    "status": problem.kind.status,
                    "headers": [
                        (b"content-type", problems.MEDIA_TYPE.encode()),
                        (b"content-length", b"%d" % len(body)),
                        (b"x-content-type-options", b"nosniff"),
                        (b"connection", b"close"),
                    ],
                }
            )
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            self.transport.close()

    def _lines(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        fields = [b"%s: %s\r\n" % field for field in headers]
        names = {name.lower(): value for name, value in headers}
        if names.get(b"connection") == b"close":
            self.keep_alive = False
        found = b"".join([_STATUS[status], *fields, b"\r\n"])
        if b"content-length" not in names:
            raise RuntimeError("an answer without Content-Length")
        if not found.count(b"\r") == found.count(b"\n") == len(fields) + 2 or b"\0" in found:
            raise RuntimeError("a header of an answer is not one line")
        return found
