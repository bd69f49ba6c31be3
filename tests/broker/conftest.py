"""Fixtures: a shared server that is emptied before each test, and one that a test may break."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from broker.client import redis_client
from broker.lanes import Lanes
from support.lane_bench import Bench
from support.lane_server import NS, Clock, Server


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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lanes(client: Redis, clock: Clock) -> Lanes:
    """Return lanes whose time stands still until the test moves it."""
    return Lanes(client, NS, clock=clock)


@pytest.fixture
def bench(lanes_server: Server) -> Iterator[Bench]:
    """Yield a worker on the shared server."""
    bench = Bench(lanes_server.url)
    yield bench
    bench.stop()


@pytest.fixture
def fragile(own_server: Server) -> Iterator[Bench]:
    """Yield a worker on a server that the test may stop."""
    bench = Bench(own_server.url)
    yield bench
    bench.stop()
