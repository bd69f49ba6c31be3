"""HTTP by hand: for requests that no client library would send."""

import contextlib
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]


def connect(url: str, timeout: float = 30.0) -> socket.socket:
    """Open a connection to the server of `url`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout)


def request_head(
    method: str, path: str, token: str | None, headers: Headers, body: bytes | None = None
) -> bytes:
    """Return a request as bytes; Content-Length is the body's, unless there is no body."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: test"]
    if token is not None:
        lines.append(b"Authorization: Bearer " + token.encode())
    lines += [name + b": " + value for name, value in headers]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer; status 0 when the server closed without one."""
    file = connection.makefile("rb")
    line = file.readline()
    if not line:
        return 0, {}, b""
    status = int(line.split()[1])
    headers: dict[str, str] = {}
    while (line := file.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = file.read(int(headers["content-length"])) if "content-length" in headers else file.read()
    return status, headers, body


def exchange(url: str, request: bytes, timeout: float = 30.0) -> tuple[int, dict[str, str], bytes]:
    """Send these bytes on a new connection and read the answer, also when the server stops listening."""
    with connect(url, timeout) as connection:
        with contextlib.suppress(OSError):  # it answered and closed before it had read everything
            connection.sendall(request)
        return read_answer(connection)
