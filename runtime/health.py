"""Health pages of relay and workers: /livez, /readyz and /metrics, each answered within a second.

Liveness: my loop turns. Readiness: my links work and I make progress. The checks run beside the
server's own threads: a check that hangs, because what it looks at hangs, is an answer too ("no").
"""

import errno
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

import orjson

from runtime import metrics
from runtime.logs import get_logger
from runtime.settings import settings

log = get_logger(__name__)

#: A probe answers within 1 s whatever hangs; the rest is for the network.
CHECK_SECONDS = 0.8
#: A client that does not send its request line is let go.
IDLE_SECONDS = 5
#: Processes with the same settings on one machine; Prometheus is told the whole range.
PORTS = 64


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of a check, and the facts behind it (JSON values, no secrets)."""

    ok: bool
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


class _Check:
    """One check, run by one thread at a time."""

    def __init__(self, name: str, check: Callable[[], Health]) -> None:
        self.name = name
        self.check = check
        self.lock = threading.Lock()
        self.running: Future[Health] | None = None

    def answer(self) -> Health:
        with self.lock:
            if self.running is None or self.running.done():
                self.running = Future()
                threading.Thread(
                    target=self._run, args=(self.running,), name=f"health-{self.name}", daemon=True
                ).start()
            running = self.running
        try:
            return running.result(CHECK_SECONDS)
        except NoAnswer:
            return Health(ok=False, detail={"error": f"no answer within {CHECK_SECONDS} s"})
        except Exception as error:  # noqa: BLE001 -- a check that fails is an answer, whatever it raised
            return Health(ok=False, detail={"error": type(error).__name__})

    def _run(self, future: Future[Health]) -> None:
        try:
            future.set_result(self.check())
        except Exception as error:
            log.exception("health check failed", check=self.name)
            future.set_exception(error)


class HealthServer:
    """The running server; `url` is its base. `close()` frees the port."""

    def __init__(self, server: ThreadingHTTPServer, url: str) -> None:
        self._server = server
        self.url = url

    def close(self) -> None:
        """Stop serving; answers that are under way end with the process."""
        self._server.shutdown()
        self._server.server_close()


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def base_url(host: str, port: int) -> str:
    """Return the URL under which a server bound to (host, port) is reached from this machine."""
    reachable = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _family(host: str) -> socket.AddressFamily:
    """Return the family of the host's first address: IPv6 for `::`, as the portal takes it."""
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]


def _bound(server: type[ThreadingHTTPServer], handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    first = settings().health_port
    for port in range(first, min(first + PORTS, 65536)):
        try:
            return server((settings().host, port), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == min(first + PORTS, 65536) - 1:
                raise
    raise AssertionError("unreachable: the last port returns or raises")


def serve_health(live: Callable[[], Health], ready: Callable[[], Health]) -> HealthServer:
    """Serve the health pages on the settings' host and health port, in threads of their own.

    A port that is taken is left to whoever has it, and the next one is tried: several worker processes
    with the same settings lie side by side. The base URL is written to the settings' health file, if one
    is named.

    Raises:
        OSError: that port and the 63 after it are taken, or the host is not this machine's.

    """
    checks = {"/livez": _Check("livez", live), "/readyz": _Check("readyz", ready)}

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS
        server_version, sys_version = "oncommit", ""

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/metrics":
                self._answer(200, metrics.CONTENT_TYPE, metrics.exposition())
            elif (check := checks.get(path)) is not None:
                health = check.answer()
                body = orjson.dumps({"ok": health.ok, **health.detail}, default=str)
                self._answer(200 if health.ok else 503, "application/json", body)
            else:
                self._answer(404, "application/json", b'{"ok":false,"error":"no such page"}')

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the overridden signature
            log.debug("health page", line=format % args)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family: int = _family(settings().host)

        def server_bind(self) -> None:
            # HTTPServer's own looks the host's name up, which takes seconds where DNS does not answer.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = settings().host, self.server_address[1]

        def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 -- overridden
            log.debug("health page: the client went away", exc_info=True)  # noqa: LOG014 -- called in one

    server = _bound(Server, Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    url = base_url(settings().host, server.server_address[1])
    if (file := settings().health_file) is not None:
        write_atomically(file, url)
    return HealthServer(server, url)
