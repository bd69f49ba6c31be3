"""Renderers that misbehave, one way each; loaded by name in real renderer children."""

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from actors.mock_renderer import render as honest


def hang(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001 -- the renderer's signature
    while True:
        pass


def stubborn(document: Path, *, digest: str, kind: str) -> bytes:
    """Ignore every signal that can be ignored."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return hang(document, digest=digest, kind=kind)


def bomb(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    held = []
    while True:
        held.append(bytearray(8 << 20))


def leak(document: Path, *, digest: str, kind: str) -> bytes:
    _KEPT.append(bytearray(50 << 20))
    return honest(document, digest=digest, kind=kind)


_KEPT: list[bytearray] = []


def told_imports(document: Path, *, digest: str, kind: str) -> bytes:
    """Render, and answer with the names of the modules that this imported."""
    before = set(sys.modules)
    honest(document, digest=digest, kind=kind)
    return " ".join(sorted(set(sys.modules) - before)).encode()


def segfault(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)
    return b""


def leave(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    os._exit(3)


def endless(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    return b"x" * (64 << 20)


def chatter(document: Path, *, digest: str, kind: str) -> bytes:
    """Write to the standard streams, which lead nowhere."""
    for _ in range(1000):
        sys.stdout.write("x" * 1000)
        sys.stderr.write("x" * 1000)
    return honest(document, digest=digest, kind=kind)


def write_file(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    Path(os.environ.get("TMPDIR", "/tmp"), f"evil-{os.getpid()}").write_bytes(b"x")  # noqa: S108
    return b""


def fork(document: Path, *, digest: str, kind: str) -> bytes:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return honest(document, digest=digest, kind=kind)


def fork_twice(document: Path, *, digest: str, kind: str) -> bytes:
    """Leave a grandchild without a parent, and answer as if nothing were."""
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.waitpid(child, 0)
    return honest(document, digest=digest, kind=kind)


def fork_and_return(document: Path, *, digest: str, kind: str) -> bytes:
    os.fork()
    return honest(document, digest=digest, kind=kind)


def raise_exit(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    raise SystemExit("\x00\x1b[31m" + "y" * 1_000_000)


def tell(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    """Answer with what this process has and may do."""
    threads = threading.active_count()
    fds = os.listdir("/proc/self/fd")  # noqa: PTH208 -- names, not paths
    return repr(
        {
            "environment": sorted(os.environ),
            "descriptors": len(fds),
            "threads": threads,
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "group": os.getpgid(0) == os.getpid(),
            "drivers": [m for m in ("psycopg", "redis") if m in sys.modules and m not in _AT_START],
        }
    ).encode()


_AT_START = frozenset(sys.modules)


def raise_dirty(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    """Fail with whatever PostgreSQL, JSON, a log or a terminal cannot take, and with 3 MB of it."""
    error = ValueError("out of \x00ink\x1b[31m\x9b2J\r\nforged line\u202e\ud800 " + "€" * 1_000_000)
    error.error_class = "Dirty\x00\x1b[31mClass\n" + "x" * 1_000_000  # type: ignore[attr-defined]
    raise error


def raise_nothing(_: Path, *, digest: str, kind: str) -> bytes:  # noqa: ARG001
    raise ValueError("\x00\x1b\r\n" * 250_000)
