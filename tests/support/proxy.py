"""A TCP proxy between two processes that a test can cut, blackhole, slow down and restore."""

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest

from ops.ports import LOOPBACK, free_port
from support.waiting import eventually

CHUNK_BYTES = 65_536
LOOK_EVERY_SECONDS = 0.02


class Proxy:
    """Listens on `port` and leads to `target`, a port of this machine.

    cut()        closes every connection with a reset, and refuses new ones
    blackhole()  keeps connections and accepts new ones, but passes nothing on: a half-open network
    slow(s)      passes each piece on `s` seconds late
    restore()    passes everything on, the bytes held back included
    drop()       resets the present connections once; new ones pass
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self._delay_seconds = 0.0
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._listen()
        self._acceptor = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """Return how many client connections pass through now."""
        with self._lock:
            return len(self._sockets) // 2

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        eventually(lambda: self._bound(listener), timeout=10, describe=f"port {self.port} is free again")
        listener.listen(128)
        listener.settimeout(LOOK_EVERY_SECONDS)
        self._listener = listener

    def _bound(self, listener: socket.socket) -> bool:
        """Bind, unless a connection that was being accepted when it was cut still holds the port."""
        try:
            listener.bind((LOOPBACK, self.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    def cut(self) -> None:
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
        self.drop()

    def drop(self) -> None:
        with self._lock:
            for one in self._sockets:
                # Linger 0 turns the close into a reset; shutdown wakes the thread that reads.
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    one.shutdown(socket.SHUT_RD)
                one.close()
            self._sockets.clear()

    def blackhole(self) -> None:
        self._open.clear()

    def slow(self, seconds: float) -> None:
        self._delay_seconds = seconds

    def restore(self) -> None:
        self._delay_seconds = 0.0
        self._open.set()
        with self._lock:
            if self._listener is None:
                self._listen()

    def close(self) -> None:
        """End the proxy."""
        self._closed = True
        self._open.set()
        self.cut()
        self._acceptor.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            listener = self._listener
            if listener is None:
                time.sleep(LOOK_EVERY_SECONDS)
                continue
            try:
                client, _ = listener.accept()
            except OSError:  # the look's time-out, or cut
                continue
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setblocking(True)
        if not self._pass():
            client.close()
            return
        try:
            server = socket.create_connection((LOOPBACK, self.target), timeout=10)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            return
        server.settimeout(None)
        pair = {client: server, server: client}
        for one in pair:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets |= pair.keys()
        try:
            self._pump(pair)
        except (OSError, ValueError):  # reset by a side, or closed by cut()
            pass
        finally:
            with self._lock:
                self._sockets -= pair.keys()
            for one in pair:
                one.close()

    def _pass(self) -> bool:
        """Wait while a blackhole is on; tell whether the proxy is still there."""
        self._open.wait()
        return not self._closed

    def _pump(self, pair: dict[socket.socket, socket.socket]) -> None:
        with selectors.DefaultSelector() as selector:
            for one in pair:
                selector.register(one, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(LOOK_EVERY_SECONDS * 10):
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    data = source.recv(CHUNK_BYTES)
                    if not self._pass():
                        return
                    if self._delay_seconds:
                        time.sleep(self._delay_seconds)
                    if data:
                        pair[source].sendall(data)
                    else:
                        selector.unregister(source)
                        pair[source].shutdown(socket.SHUT_WR)


class Proxies:
    """Makes proxies that end with the test."""

    def __init__(self) -> None:
        self.made: list[Proxy] = []

    def to(self, port: int) -> Proxy:
        """Return a new proxy that leads to a port of this machine."""
        proxy = Proxy(port)
        self.made.append(proxy)
        return proxy


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    """Make proxies between any two processes."""
    found = Proxies()
    yield found
    for proxy in found.made:
        proxy.close()
