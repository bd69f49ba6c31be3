"""Fixture of Valkey: a real server for each test, which the test may kill, empty, freeze or starve."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ops.account import servers_account
from ops.binaries import valkey_program
from ops.guardian import Guardian
from ops.valkey import DISPOSABLE, ValkeyPlan, ValkeyServer
from support.waiting import eventually

REWRITES = ("in_progress", "scheduled")


class Valkey:
    """A Valkey server. Nothing is kept on disk unless `persist` was called."""

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
        self._client: redis.Redis | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def client(self) -> redis.Redis:
        """A client that answers bytes and tries nothing twice."""
        if self._client is None:
            self._client = redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=10, retry=None)
        return self._client

    def kill(self) -> None:
        """SIGKILL."""
        self.server.kill()

    def stop(self) -> None:
        """Stop it in order."""
        self.server.stop()

    def start(self, *, empty: bool = False) -> None:
        """Start on the same port; `empty` forgets what was kept."""
        self.server.start(empty=empty)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.server.process.freeze()

    def thaw(self) -> None:
        self.server.process.thaw()

    def config(self, **settings: str | int) -> None:
        """CONFIG SET, underscores for dashes: `config(maxmemory="4mb", maxmemory_policy="noeviction")`."""
        for name, value in settings.items():
            self.client.config_set(name.replace("_", "-"), value)

    def persist(self, appendfsync: str = "everysec") -> None:
        """Keep an append-only file from now on, also over `kill` and `start`."""
        self.config(appendonly="yes", appendfsync=appendfsync)
        # The file counts only once its first writing has ended.
        eventually(lambda: all(not self.client.info("persistence")[f"aof_rewrite_{s}"] for s in REWRITES))
        self.server.settings |= {"appendonly": "yes", "appendfsync": appendfsync}

    def close(self) -> None:
        """End the server and remove its files."""
        if self._client is not None:
            self._client.close()
        self.server.kill()
        shutil.rmtree(self.server.plan.datadir, ignore_errors=True)


@pytest.fixture
def valkey(servers_folder: Path, guardian: Guardian) -> Iterator[Valkey]:
    """Start a fresh, empty Valkey of the test's own."""
    server = Valkey(servers_folder, guardian)
    server.start()
    yield server
    server.close()
