"""Faults of Redis: killed with more or less of its data, emptied, turned back, frozen, full, read-only."""

from pathlib import Path
from typing import Any, ClassVar

from ops.valkey import DISPOSABLE
from support.waiting import eventually

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


class RedisCannotSave(Fault):
    """A snapshot failed, so every write is refused (MISCONF), also those that take no memory."""

    name = "redis-cannot-save"
    touches = TOUCHES

    def inject(self) -> None:
        valkey = self.world.valkey
        self._in_its_place = Path(valkey.server.plan.datadir, "dump.rdb")
        self._in_its_place.unlink(missing_ok=True)
        self._in_its_place.mkdir()
        valkey.config(save="3600 1", stop_writes_on_bgsave_error="yes")
        self._save("err")

    def heal(self) -> None:
        self._in_its_place.rmdir()
        self._save("ok")
        self.world.valkey.config(save="")
        self._in_its_place.unlink()

    def _save(self, status: str) -> None:
        client: Any = self.world.valkey.client
        client.bgsave()
        eventually(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == status,
            timeout=10,
            describe=f"a snapshot that ends as {status}",
        )


class RedisLoading(Fault):
    """It was killed and loads a large file for two seconds: it is there, and answers LOADING."""

    name = "redis-loading"
    touches = TOUCHES
    hold_seconds = (0.0, 0.5)

    def inject(self) -> None:
        client = self.world.valkey.client
        self._filler = [f"filler:{n}" for n in range(40)]
        client.mset(dict.fromkeys(self._filler, "x" * 50_000))
        client.save()
        self.world.valkey.kill()

    def heal(self) -> None:
        valkey = self.world.valkey
        slowly = {"key-load-delay": "50000", "loading-process-events-interval-bytes": "20000"}
        valkey.server.settings |= slowly
        valkey.start()  # returns when all is loaded
        valkey.server.settings = {k: v for k, v in valkey.server.settings.items() if k not in slowly}
        valkey.client.delete(*self._filler)
        Path(valkey.server.plan.datadir, "dump.rdb").unlink()


class RedisForgetful(Fault):
    """Every client is cut off and every script forgotten."""

    name = "redis-clients-killed"
    touches = TOUCHES
    hold_seconds = (0.0, 0.5)

    def inject(self) -> None:
        client = self.world.valkey.client
        client.script_flush()
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


class RedisStorm(RedisForgetful):
    """The same five times within three seconds: whoever has just come back is cut off again."""

    name = "redis-storm"

    def inject(self) -> None:
        for _ in range(5):
            super().inject()
            self.world.pass_time(0.6)


FAULTS: tuple[type[Fault], ...] = (
    RedisKilledEmpty,
    RedisKilledAof,
    RedisKilledEverysec,
    RedisFlushed,
    RedisTurnedBack,
    RedisFrozen,
    RedisFull,
    RedisReadOnly,
    RedisCannotSave,
    RedisLoading,
    RedisForgetful,
    RedisStorm,
)
