"""The load by hand counts whole answers, one at a time on each connection, and never a broken one."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from benchmarks.bench.http_load import content_length, load


@contextmanager
def server(*pieces: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Answer every request on every connection with these pieces; tell what was asked."""
    listener, asked = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):  # the load ends in the middle of answers
            while request := connection.recv(4096):
                asked.append(request)
                if not pieces:
                    return
                for piece in pieces:
                    connection.sendall(piece)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def numbered() -> Iterator[bytes]:
    for n in count():
        yield b"POST /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n


def test_answers_are_counted_by_status_also_when_they_come_in_pieces() -> None:
    head, rest = b"HTTP/1.1 202 Accepted\r\nContent-Le", b"ngth: 4\r\n\r\nab"
    with server(head, rest, b"cd") as (url, asked):
        seen = load(url, numbered(), clients=3, seconds=0.3, warm_up=0.05)
    assert seen.statuses == {202: len(seen.latencies)}
    assert seen.latencies
    assert seen.rate == len(seen.latencies) / 0.3
    assert len(set(asked)) == len(asked), "a request was sent twice"
    assert len(asked) >= len(seen.latencies)


def test_a_refusal_is_an_answer_with_its_own_status() -> None:
    with server(b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n") as (url, _):
        seen = load(url, numbered(), clients=1, seconds=0.1, warm_up=0)
    assert set(seen.statuses) == {429}


def test_a_closed_connection_is_an_error_and_not_a_slow_server() -> None:
    with server() as (url, _), pytest.raises(ConnectionError):
        load(url, numbered(), clients=1, seconds=1)


def test_an_answer_has_to_say_how_long_it_is() -> None:
    assert content_length(b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\nX: y") == 17
    with pytest.raises(ValueError, match="without Content-Length"):
        content_length(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked")
