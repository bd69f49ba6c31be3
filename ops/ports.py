"""Free loopback ports.

Below the kernel's ephemeral range, for two reasons: an outgoing connection cannot be given the port while
its server restarts, and a client that knocks at an ephemeral port of its own host can end up connected to
itself.
"""

import random
import socket

LOOPBACK = "127.0.0.1"
# Linux hands out 32768 and up, macOS 49152 and up; below 20000 many programs have their fixed ports.
LOWEST, HIGHEST = 20_000, 32_000
TRIES = 200


class NoPortError(RuntimeError):
    """No port of the range is free."""


def free_port() -> int:
    """Return a loopback port that nobody listens on now.

    Raises:
        NoPortError: not found.

    """
    for _ in range(TRIES):
        port = random.randint(LOWEST, HIGHEST)  # noqa: S311 -- spread, not secrecy
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise NoPortError(f"no free port between {LOWEST} and {HIGHEST} on {LOOPBACK}")
