"""Renderer children: one process for each render that is going, kept warm, replaced after any failure.

They are forked from a server that has imported Pillow and drawn a page (`multiprocessing`'s
forkserver): forking a worker full of threads can deadlock, and starting Python takes 50 to 80 ms.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from typing import Any

from actors import fork_server, renderer
from actors.errors import (
    DocumentError,
    DocumentMissing,
    InfrastructureError,
    PermanentError,
    RenderCrashed,
    RenderError,
    RendererUnavailable,
    RenderOutputTooLarge,
    RenderTimeout,
)
from actors.frames import FrameMalformed, FrameTooLarge, read_frame, send_frame
from actors.renderer import Limits

RENDERER = "actors.mock_renderer:render"
#: The first child waits for the server's imports; a machine that needs longer is in trouble.
START_SECONDS = 20.0
#: A killed process is gone in milliseconds; one stuck in the kernel is not worth a worker's thread.
REAP_SECONDS = 2.0
#: An idle child ends in about a millisecond once its socket closes.
GRACE_SECONDS = 0.1

_CLASSES: Mapping[str, type[RenderError]] = {
    "document": DocumentError,
    "permanent": PermanentError,
    "infrastructure": InfrastructureError,
}
_CONTEXT = multiprocessing.get_context("forkserver")
# `multiprocessing` keeps one set of children for the process and polls it from whoever starts another.
_STARTING = threading.Lock()


class RendererChild:
    """A running renderer child. `render` is for one thread; `kill` is for any.

    Raises:
        RendererUnavailable: it could not be started.

    """

    def __init__(self, limits: Limits, target: str = RENDERER) -> None:
        self._limits = limits
        self._ending = threading.Lock()
        self._closed = False
        self._killed = False
        self.exit_code: int | None = None
        self.reusable = True
        try:
            self._socket, theirs = socket.socketpair()
        except OSError as error:  # no descriptor is left
            raise RendererUnavailable(f"a renderer did not start: {error.strerror}") from error
        self._process: BaseProcess = _CONTEXT.Process(
            target=renderer.serve, args=(theirs, target, limits), daemon=True
        )
        try:
            with theirs, _STARTING:
                fork_server.ensure()
                self._process.start()
            # `multiprocessing` waits at exit for every child, and these do not heed its SIGTERM.
            self._at_exit = util.Finalize(self, _kill, args=[self.pid], exitpriority=0)
            read_frame(self._socket, max_payload=0, deadline=time.monotonic() + START_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise RendererUnavailable(f"a renderer did not start: {type(error).__name__}") from error

    @property
    def pid(self) -> int:
        """The child's process id, which is its process group's too."""
        return 0 if self._closed else self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return bool(self.pid) and not connection.wait([self._process.sentinel], timeout=0)

    def render(self, request: Mapping[str, Any], timeout: float) -> bytes:
        """Return the preview; after any error the child is gone and `reusable` is false.

        `request` has document (a path), digest, kind, attempt, simulate; `timeout` is in seconds.

        Raises:
            RenderError: in all its kinds but RenderStopped.

        """
        deadline = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            send_frame(self._socket, dict(request))
            header, preview = read_frame(
                self._socket, max_payload=self._limits.output_bytes, deadline=deadline
            )
        except TimeoutError as error:
            self.close()
            raise RenderTimeout(f"longer than {timeout:g} s") from error
        except FrameTooLarge as error:
            self.close()
            raise RenderOutputTooLarge(f"more than {self._limits.output_bytes} bytes") from error
        except FrameMalformed as error:
            self.close()
            raise DocumentError("the renderer answered nonsense", error_class="RenderMalformed") from error
        except (EOFError, OSError) as error:
            raise RenderCrashed(self.close()) from error
        if header.get("ok") is not True:
            self.close()
            raise _error_of(header)
        self.reusable = not header.get("last") and not self._killed
        return preview

    def kill(self) -> None:
        """End the child and everything it started; from any thread, also when it is gone already."""
        with self._ending:
            self._killed = True
            self.reusable = False
            if not self._closed and self.pid:
                _kill(self.pid)

    def close(self) -> int | None:
        """End the child and collect it; return its exit code (negative: the signal), None if unknown."""
        self.reusable = False
        self._socket.close()
        with self._ending:
            if self._closed or not self.pid:
                return self.exit_code
            # What crashed has an exit code to tell, and who is idle ends by itself now: wait before killing.
            connection.wait([self._process.sentinel], timeout=GRACE_SECONDS)
            _kill(self.pid)  # also what it started and left behind
            if connection.wait([self._process.sentinel], timeout=REAP_SECONDS):
                with _STARTING:
                    self._process.join(0)
                    self.exit_code = self._process.exitcode
                    self._process.close()
                self._closed = True
                self._at_exit.cancel()
        return self.exit_code


def _kill(pid: int) -> None:
    """Kill the process group of a child."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its group yet, or is gone with all of it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _error_of(header: Mapping[str, Any]) -> RenderError:
    name, text = str(header.get("name") or "DocumentError"), str(header.get("text") or "")
    if name == DocumentMissing.__name__:
        return DocumentMissing(text)
    return _CLASSES.get(str(header.get("class")), DocumentError)(text or name, error_class=name)


class Renderers:
    """The children of this worker process: `take` one for a render, `give` it back after."""

    def __init__(self, limits: Limits, target: str = RENDERER) -> None:
        self._limits = limits
        self._target = target
        self._idle: list[RendererChild] = []
        self._closed = False
        self._lock = threading.Lock()

    def warm_up(self, children: int) -> None:
        """Start so many children, so that the first jobs do not wait for them.

        Raises:
            RendererUnavailable: they could not be started.

        """
        for _ in range(children):
            self.give(RendererChild(self._limits, self._target))

    def take(self) -> RendererChild:
        """Return a child that waits for work: the one used last, or a new one.

        Raises:
            RendererUnavailable: a new one could not be started.

        """
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return RendererChild(self._limits, self._target)
            if child.alive:
                return child
            child.close()  # it died idle, as when the machine runs out of memory: no document's fault

    def give(self, child: RendererChild) -> None:
        """Keep the child for the next render, unless it is used up or there is none."""
        with self._lock:
            if child.reusable and not self._closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        """End the children that are idle, and from now on each that is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
