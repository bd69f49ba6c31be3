"""Fixture of Valkey: a real server for each test, which the test may kill, empty, freeze or starve."""

import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ops.account import servers_account
from ops.binaries import valkey_program
from ops.guardian import Guardian
from ops.ports import LOOPBACK
from ops.valkey import DISPOSABLE, ValkeyPlan, ValkeyServer
from support.containers import ContainerValkey
from support.waiting import eventually

REWRITES = ("in_progress", "scheduled")


class Valkey(ABC):
    """A Valkey server. Nothing is kept on disk unless `persist` was called."""

    _client: redis.Redis | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def port(self) -> int: ...

    @property
    def client(self) -> redis.Redis:
        """A client that answers bytes and tries nothing twice."""
        if self._client is None:
            self._client = redis.Redis(host=LOOPBACK, port=self.port, socket_timeout=10, retry=None)
        return self._client

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it in order."""

    @abstractmethod
    def start(self, *, empty: bool = False) -> None:
        """Start on the same port; `empty` forgets what was kept."""

    @abstractmethod
    def freeze(self) -> None:
        """Stop it where it is: connections stay open, nothing answers."""

    @abstractmethod
    def thaw(self) -> None:
        """Undo `freeze`."""

    def config(self, **settings: str | int) -> None:
        """CONFIG SET, underscores for dashes: `config(maxmemory="4mb", maxmemory_policy="noeviction")`."""
        for name, value in settings.items():
            self.client.config_set(name.replace("_", "-"), value)

    def persist(self, appendfsync: str = "everysec") -> None:
        """Keep an append-only file from now on, also over `kill` and `start`."""
        self.config(appendonly="yes", appendfsync=appendfsync)
        # The file counts only once its first writing has ended.
        eventually(lambda: all(not self.client.info("persistence")[f"aof_rewrite_{s}"] for s in REWRITES))
        self._keep({"appendonly": "yes", "appendfsync": appendfsync})

    @abstractmethod
    def _keep(self, settings: dict[str, str]) -> None:
        """Let these hold over the next start."""

    def close(self) -> None:
        """End the server and remove its files."""
        if self._client is not None:
            self._client.close()


class LocalValkey(Valkey):
    """A Valkey in a process of this machine."""

    def __init__(self, folder: Path, guardian: Guardian) -> None:
        account = servers_account()
        name = f"valkey-{secrets.token_hex(4)}"
        self.server = ValkeyServer(
            ValkeyPlan(
                program=valkey_program(account, folder / "binaries"),
                datadir=folder / name,
                log=folder / f"{name}.log",
                account=account,
                settings=DISPOSABLE,
            ),
            guardian,
        )

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return self.server.port

    def kill(self) -> None:
        self.server.kill()

    def stop(self) -> None:
        self.server.stop()

    def start(self, *, empty: bool = False) -> None:
        self.server.start(empty=empty)

    def freeze(self) -> None:
        self.server.process.freeze()

    def thaw(self) -> None:
        self.server.process.thaw()

    def _keep(self, settings: dict[str, str]) -> None:
        self.server.settings |= settings

    def close(self) -> None:
        super().close()
        self.server.kill()
        shutil.rmtree(self.server.plan.datadir, ignore_errors=True)


class ValkeyInContainer(Valkey):
    """A Valkey of the project's own image."""

    def __init__(self) -> None:
        self._container = ContainerValkey(DISPOSABLE)

    @property
    def url(self) -> str:
        return self._container.url

    @property
    def port(self) -> int:
        return self._container.port

    def kill(self) -> None:
        self._container.kill()

    def stop(self) -> None:
        self._container.stop()

    def start(self, *, empty: bool = False) -> None:
        self._container.begin(empty=empty)

    def freeze(self) -> None:
        self._container.freeze()

    def thaw(self) -> None:
        self._container.thaw()

    def _keep(self, settings: dict[str, str]) -> None:
        self._container.settings |= settings
        self.client.config_rewrite()

    def close(self) -> None:
        super().close()
        self._container.remove()


@pytest.fixture
def valkey(request: pytest.FixtureRequest, servers_folder: Path, guardian: Guardian) -> Iterator[Valkey]:
    """Start a fresh, empty Valkey of the test's own, in a container where its PostgreSQL is in one."""
    beside = request.getfixturevalue("session_server") if "session_server" in request.fixturenames else None
    in_container = beside is not None and beside.kind == "container"
    server = ValkeyInContainer() if in_container else LocalValkey(servers_folder, guardian)
    try:
        server.start()
        yield server
    finally:
        server.close()
