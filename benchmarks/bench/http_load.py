"""HTTP load by hand: one thread, keep-alive connections, each sends its next request after its answer.

A client library costs more CPU than the servers that are measured here, on the same two cores.
"""

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

RECEIVE_BYTES = 1 << 16
END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"content-length:"
ANSWER_SECONDS = 30.0


@dataclass(slots=True)
class Seen:
    """What was answered within the measured seconds: how often each status, and each answer's seconds."""

    seconds: float
    statuses: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return answers a second."""
        return len(self.latencies) / self.seconds


class Client:
    """One connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0

    def ask(self, request: bytes) -> int:
        """Send a request and wait for its answer; return the status."""
        self.send(request)
        while not (status := self.answer()):
            pass  # it came in part
        return status

    def send(self, request: bytes) -> None:
        """Send a request; `answer` takes what comes of it."""
        self.received = b""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> int:
        """Take what is there; return the status once the answer is whole, else 0."""
        chunk = self.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise ConnectionError("the server closed a connection")
        self.received += chunk
        head, found, body = self.received.partition(END_OF_HEAD)
        if not found or len(body) < content_length(head):
            return 0
        return int(head[9:12])


def content_length(head: bytes) -> int:
    """Return what the head of an answer says about its body.

    Raises:
        ValueError: nothing: chunks are not understood here.

    """
    lowered = head.lower()
    at = lowered.find(LENGTH)
    if at < 0:
        raise ValueError("an answer without Content-Length")
    return int(lowered[at + len(LENGTH) :].split(b"\r\n", 1)[0])


def load(
    url: str,
    requests: Iterator[bytes],
    *,
    clients: int,
    seconds: float,
    warm_up: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
) -> Seen:
    """Keep `clients` requests in flight for `warm_up + seconds`; what is answered in the latter counts.

    Raises:
        OSError: a connection broke.
        TimeoutError: no answer for 30 s.

    """
    everyone = [Client(url) for _ in range(clients)]
    seen = Seen(seconds)
    with selectors.DefaultSelector() as selector:
        for client in everyone:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send(next(requests))
        begin = clock() + warm_up
        while (now := clock()) < begin + seconds:
            ready = selector.select(ANSWER_SECONDS)
            if not ready:
                raise TimeoutError("no answer")
            for key, _ in ready:
                client = key.data
                if status := client.answer():
                    now = clock()
                    if begin <= now < begin + seconds:
                        seen.statuses[status] = seen.statuses.get(status, 0) + 1
                        seen.latencies.append(now - client.sent_at)
                    client.send(next(requests))
    for client in everyone:
        while not client.answer():  # what is under way ends here, and not in the next turn
            pass
        client.socket.close()
    return seen
