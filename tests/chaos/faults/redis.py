"""Faults of Redis: killed with more or less of its data, emptied, turned back, frozen, full, read-only."""

from pathlib import Path
from typing import ClassVar

from ops.valkey import DISPOSABLE

from ..fault import Fault

TOUCHES = frozenset({"redis"})
AOF = "appendonlydir"


class RedisKilledEmpty(Fault):
    """SIGKILL; it comes back with nothing."""

    name = "redis-killed-empty"
    touches = TOUCHES

    def inject(self) -> None:
        self.world.valkey.kill()

    def heal(self) -> None:
        self.world.valkey.start(empty=True)


class RedisKilledAof(Fault):
    """SIGKILL; every write that it answered is in its file."""

    name = "redis-killed-aof"
    touches = TOUCHES
    fsync: ClassVar[str] = "always"

    def inject(self) -> None:
        self.world.valkey.persist(self.fsync)
        self.world.valkey.kill()

    def heal(self) -> None:
        valkey = self.world.valkey
        valkey.start()
        valkey.server.settings |= DISPOSABLE
        valkey.config(appendonly="no")


class RedisKilledEverysec(RedisKilledAof):
    """SIGKILL; the last of its writes were never synced to the disk and are gone.

    The kernel keeps what a killed process wrote, so the loss of a power cut is made by cutting the file.
    """

    name = "redis-killed-everysec"
    fsync = "everysec"

    def inject(self) -> None:
        valkey = self.world.valkey
        valkey.persist(self.fsync)
        [file] = Path(valkey.server.plan.datadir, AOF).glob("*.incr.aof")
        synced = file.stat().st_size
        self.world.pass_time(self.rng.uniform(0.3, 1.0))
        valkey.kill()
        written = file.stat().st_size
        with file.open("r+b") as aof:
            aof.truncate(self.rng.randint(synced, written))


class RedisFlushed(Fault):
    """FLUSHALL by somebody who thought it was another server."""

    name = "redis-flushed"
    touches = TOUCHES
    hold_seconds = (0.0, 0.5)

    def inject(self) -> None:
        self.world.valkey.client.flushall()


class RedisTurnedBack(Fault):
    """A stale copy is put back: what it says was true some seconds ago."""

    name = "redis-turned-back"
    touches = TOUCHES
    hold_seconds = (1.0, 5.0)

    def inject(self) -> None:
        self._file = Path(self.world.valkey.server.plan.datadir, "dump.rdb")
        self.world.valkey.client.save()
        self._copy = self._file.with_suffix(".copy")
        self._file.rename(self._copy)

    def heal(self) -> None:
        self.world.valkey.kill()
        self._copy.rename(self._file)
        self.world.valkey.start()
        self._file.unlink()


class RedisFrozen(Fault):
    """SIGSTOP: connections stay, nothing answers."""

    name = "redis-frozen"
    touches = TOUCHES
    hold_seconds = (1.0, 5.0)

    def inject(self) -> None:
        self.world.valkey.freeze()

    def heal(self) -> None:
        self.world.valkey.thaw()


class RedisFull(Fault):
    """`maxmemory` is reached, nothing may be evicted: writes that take memory are refused."""

    name = "redis-full"
    touches = TOUCHES

    def inject(self) -> None:
        self.world.valkey.config(maxmemory=1)

    def heal(self) -> None:
        self.world.valkey.config(maxmemory=0)


class RedisReadOnly(Fault):
    """A failover went wrong: the server is a replica of nobody, readable only."""

    name = "redis-read-only"
    touches = TOUCHES

    def inject(self) -> None:
        self.world.valkey.client.replicaof("127.0.0.1", "1")

    def heal(self) -> None:
        self.world.valkey.client.replicaof("NO", "ONE")


class RedisForgetful(Fault):
    """Every client is cut off and every script forgotten."""

    name = "redis-clients-killed"
    touches = TOUCHES
    hold_seconds = (0.0, 0.5)

    def inject(self) -> None:
        client = self.world.valkey.client
        client.script_flush()
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


FAULTS: tuple[type[Fault], ...] = (
    RedisKilledEmpty,
    RedisKilledAof,
    RedisKilledEverysec,
    RedisFlushed,
    RedisTurnedBack,
    RedisFrozen,
    RedisFull,
    RedisReadOnly,
    RedisForgetful,
)
