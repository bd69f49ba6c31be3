"""Frames between a worker and its renderer child: a JSON header and some bytes, both bounded.

    4 bytes header length | 4 bytes payload length | header (JSON object) | payload

Never pickle: what comes from a renderer is data, whatever the document made of the renderer.
"""

import socket
import struct
import time
from typing import Any, cast

import orjson

_LENGTHS = struct.Struct(">II")
#: Room for an error's text (2 KB) with every character escaped, and for a request.
MAX_HEADER_BYTES = 32_768
_CHUNK = 1 << 16  # bytes per read: the usual size of a socket's buffer


class FrameTooLarge(ValueError):
    """The other side announced more bytes than it may send."""


class FrameMalformed(ValueError):
    """The header is not a JSON object."""


def send_frame(sock: socket.socket, header: dict[str, Any], payload: bytes = b"") -> None:
    """Send one frame; blocks until the other side took it.

    Raises:
        OSError: the other side is gone, or the socket's time limit passed.

    """
    head = orjson.dumps(header)
    sock.sendall(_LENGTHS.pack(len(head), len(payload)) + head)
    if payload:
        sock.sendall(payload)


def read_frame(
    sock: socket.socket, *, max_payload: int, deadline: float | None = None
) -> tuple[dict[str, Any], bytes]:
    """Return the next frame's header and payload.

    `deadline` (of `time.monotonic()`) bounds the whole frame, not each read.

    Raises:
        EOFError: the other side closed.
        TimeoutError: the deadline passed.
        FrameTooLarge, FrameMalformed: what came is no frame.

    """
    head_length, payload_length = _LENGTHS.unpack(_read(sock, _LENGTHS.size, deadline))
    if head_length > MAX_HEADER_BYTES or payload_length > max_payload:
        raise FrameTooLarge(f"{head_length} + {payload_length} bytes announced")
    try:
        header: Any = orjson.loads(_read(sock, head_length, deadline))
    except orjson.JSONDecodeError as error:
        raise FrameMalformed("the header is not JSON") from error
    if not isinstance(header, dict):
        raise FrameMalformed("the header is not an object")
    return cast("dict[str, Any]", header), _read(sock, payload_length, deadline)


def _read(sock: socket.socket, length: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        if deadline is not None:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            sock.settimeout(left)
        part = sock.recv(min(_CHUNK, length - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
