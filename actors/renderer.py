"""The renderer child: takes a request from its socket, answers with a preview or a readable error.

Runs in a process of its own, forked from a server that has imported everything already. It ends when
its socket closes, so it does not survive its worker; a document can hurt nothing but this process.
"""

import importlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from actors import confine, simulate
from actors.clean import MAX_CLASS_LENGTH, clean
from actors.errors import (
    DocumentMissing,
    InfrastructureError,
    PermanentError,
    RenderForked,
    RenderMemory,
    RenderOutputTooLarge,
)
from actors.frames import read_frame, send_frame

Renderer = Callable[..., bytes]  # (document: Path, *, digest: str, kind: str) -> bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """What one render may take: memory above what the child starts with, and its preview, in bytes."""

    memory_bytes: int
    output_bytes: int


def serve(sock: socket.socket, renderer: str, limits: Limits) -> NoReturn:
    """Render what comes through `sock` until it closes; `renderer` is `module:function`."""
    os.environ.clear()  # passwords live there
    confine.detach(keep=sock.fileno())
    confine.die_with_parent()
    render = _load(renderer)
    threading.Thread(target=_exit_on_hangup, args=(sock,), daemon=True).start()
    base = confine.mapped_bytes()
    confine.limit(limits.memory_bytes)
    try:
        send_frame(sock, {"ok": True})
        while True:
            request, _ = read_frame(sock, max_payload=0)
            header, preview = _answer(render, request, limits)
            # A child that kept much of its memory would fail the next document for this one's sake.
            header["last"] = confine.mapped_bytes() - base > limits.memory_bytes // 4
            send_frame(sock, header, preview)
    except (EOFError, OSError):
        os._exit(0)


def _load(renderer: str) -> Renderer:
    module, _, function = renderer.partition(":")
    loaded: Renderer = getattr(importlib.import_module(module), function)
    return loaded


def _exit_on_hangup(sock: socket.socket) -> None:
    """End this process when the worker is gone, also in the middle of a render."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def _answer(render: Renderer, request: Mapping[str, Any], limits: Limits) -> tuple[dict[str, Any], bytes]:
    me = os.getpid()
    try:
        preview = _render(render, request)
        if os.getpid() != me:
            os._exit(0)  # a fork came back from the renderer: only the original may answer
        _check(preview, limits)
    except MemoryError:
        error: BaseException = RenderMemory(f"more than {limits.memory_bytes >> 20} MB of memory")
    except BaseException as caught:  # noqa: BLE001 -- whatever a document provokes is an answer
        if os.getpid() != me:
            os._exit(1)
        error = caught
    else:
        return {"ok": True}, preview
    return {
        "ok": False,
        "class": _class_of(error),
        "name": clean(getattr(error, "error_class", type(error).__name__), MAX_CLASS_LENGTH),
        "text": clean(str(error)),
    }, b""


def _check(preview: bytes, limits: Limits) -> None:
    if confine.has_children():
        raise RenderForked("the render started processes of its own")
    if len(preview) > limits.output_bytes:
        raise RenderOutputTooLarge(f"{len(preview)} bytes, {limits.output_bytes} allowed")


def _render(render: Renderer, request: Mapping[str, Any]) -> bytes:
    if request["simulate"]:
        simulate.act(request["simulate"], attempt=request["attempt"])
    document = Path(request["document"])
    try:
        document.open("rb").close()
    except OSError as error:
        raise DocumentMissing(f"the document cannot be opened: {error.strerror}") from error
    preview = render(document, digest=request["digest"], kind=request["kind"])
    return bytes(preview)


def _class_of(error: BaseException) -> str:
    if isinstance(error, PermanentError):
        return "permanent"
    if isinstance(error, InfrastructureError):
        return "infrastructure"
    return "document"
