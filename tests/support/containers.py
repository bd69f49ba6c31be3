"""PostgreSQL and Valkey in containers of the project's own images, by testcontainers."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis
from psycopg.conninfo import make_conninfo
from testcontainers.core.container import DockerContainer

from ops.ports import LOOPBACK, free_port

POSTGRES_IMAGE, VALKEY_IMAGE = "oncommit-postgres:local", "oncommit-valkey:local"
READY_SECONDS = 60.0
STOP_SECONDS = 20  # then the engine kills; a fast shutdown can be held up by a client that never confirms
PASSWORD_FILE = "/run/secrets/password"


# Whose container it is: a session that was killed cannot remove its own.
OWNER = "oncommit.tests.owner"


def owner(pid: int) -> str:
    """Name a process of this machine so that no later one has the name.

    Raises:
        psutil.NoSuchProcess: there is none.

    """
    return f"{socket.gethostname()}/{pid}/{psutil.Process(pid).create_time():.0f}"


def remove_mine() -> None:
    """Remove what this process started and did not remove, as when an interrupt left it half made."""
    _remove(lambda label: label == owner(os.getpid()))


def remove_left() -> None:
    """Remove what processes of this machine left that are no more."""

    def left(label: str) -> bool:
        host, pid, _ = label.split("/")
        try:
            return host == socket.gethostname() and label != owner(int(pid))
        except psutil.NoSuchProcess:
            return True

    _remove(left)


def _remove(chosen: Callable[[str], bool]) -> None:
    listed = ["docker", "ps", "--all", "--filter", f"label={OWNER}", "--format"]
    listed.append(f'{{{{.ID}}}} {{{{.Label "{OWNER}"}}}}')
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    ids = [name for name, label in (line.split(" ") for line in lines) if chosen(label)]
    if ids:
        # Not checked: sessions that begin together remove the same.
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", *ids], capture_output=True, text=True, check=False
        )


class Container:
    """One container on a loopback port that stays the same over every ending."""

    def __init__(self, image: str, port: int) -> None:
        self.port = free_port()
        self._image, self._inner_port = image, port
        self._container = self._new()
        self._started = False

    def _new(self) -> DockerContainer:
        container = DockerContainer(self._image)
        # with_bind_ports would publish on every interface.
        container.ports = {f"{self._inner_port}/tcp": (LOOPBACK, self.port)}
        # PostgreSQL's parallel queries keep their hash tables in shared memory.
        container.with_kwargs(labels={OWNER: owner(os.getpid())}, shm_size="256m")
        return container

    @property
    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()

    @property
    def state(self) -> str:
        """Return the engine's word: `running`, `paused`, `exited`, or `absent` before the first start."""
        if not self._started:
            return "absent"
        self._wrapped.reload()
        return str(self._wrapped.status)

    def start(self, answers: Callable[[], bool]) -> None:
        """Start it, for the first time or again, and wait until it answers."""
        if not self._started:
            self._container.start()
            self._started = True
        elif self.state != "running":
            self._wrapped.start()
        deadline = time.monotonic() + READY_SECONDS
        while not answers():
            if time.monotonic() > deadline or self.state == "exited":
                raise RuntimeError(f"the container does not answer:\n{self.log_text()[-4000:]}")
            time.sleep(0.05)  # a server that starts has no signal to wait for

    def stop(self) -> None:
        """Stop it in order."""
        if self.state in {"running", "paused"}:
            self.thaw()
            self._wrapped.stop(timeout=STOP_SECONDS)

    def kill(self, signal: str = "SIGKILL") -> None:
        """Send the first process a signal that ends it, and wait for its end."""
        if self.state in {"running", "paused"}:
            self._wrapped.kill(signal)
            self._wrapped.wait()

    def freeze(self) -> None:
        """Freeze every process of it."""
        if self.state == "running":
            self._wrapped.pause()

    def thaw(self) -> None:
        """Undo `freeze`."""
        if self.state == "paused":
            self._wrapped.unpause()

    def log_text(self) -> str:
        """Return all that it wrote."""
        return bytes(self._wrapped.logs()).decode(errors="replace") if self._started else ""

    def remove(self) -> None:
        """End it and remove it with its data."""
        if self._started:
            self._container.stop(force=True, delete_volume=True)


class ContainerPostgres(Container):
    """PostgreSQL 17 with wal2json, as `compose/postgres.Dockerfile` makes it."""

    version = 17
    has_wal2json = True

    def __init__(self, folder: Path, password: str, settings: Mapping[str, str]) -> None:
        self.password = password
        secret = folder / "container-password"
        secret.write_text(f"{password}\n", encoding="ascii")
        secret.chmod(0o444)  # the account in the container is not this one
        super().__init__(POSTGRES_IMAGE, 5432)
        self._container.with_command(
            ["oncommit-postgres", *(f"{name}={value}" for name, value in settings.items())]
        )
        self._container.with_envs(ONCOMMIT_POSTGRES_PASSWORD_FILE=PASSWORD_FILE, ONCOMMIT_MAX_SLOT_WAL="-1")
        self._container.with_volume_mapping(secret, PASSWORD_FILE, "ro")

    @property
    def running(self) -> bool:
        """Tell whether there is a process, be it frozen."""
        return self.state in {"running", "paused"}

    def begin(self) -> None:
        """Start it and wait until a superuser can connect."""
        self.start(self.answers)

    def answers(self) -> bool:
        """Tell whether a superuser can connect now."""
        dsn = make_conninfo(
            host=LOOPBACK, port=self.port, user="postgres", password=self.password, dbname="postgres"
        )
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def quit(self) -> None:
        """Shut it down at once, without a checkpoint."""
        self.kill("SIGQUIT")


class ContainerValkey(Container):
    """Valkey as `compose/valkey.Dockerfile` makes it, without a password: only loopback reaches it.

    `settings` may be changed; a change counts from the next start on, as do those of `CONFIG REWRITE`.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = {"bind": "*", "protected-mode": "no", "save": '""', **settings}
        super().__init__(VALKEY_IMAGE, 6379)

    @property
    def url(self) -> str:
        """Return the URL of its database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def begin(self, *, empty: bool = False) -> None:
        """Start it and wait until it serves; `empty` forgets what it had kept."""
        if empty or not self._started:
            self.remove()
            self._started, self._container = False, self._new()
            lines = "".join(f"{name} {value}\\n" for name, value in self.settings.items())
            # A file, not arguments: what CONFIG REWRITE writes there holds over the next start.
            script = f"test -e own.conf || printf '{lines}' > own.conf; exec valkey-server ./own.conf"
            self._container.with_command(["sh", "-c", script])
        self.start(self.answers)

    def answers(self) -> bool:
        """Tell whether it serves commands now; while it loads its file it does not."""
        with redis.Redis(host=LOOPBACK, port=self.port, socket_timeout=2, retry=None) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False
