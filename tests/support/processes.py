"""Fixture of real processes: portal, relay, worker or anything else, with their logs, ended with the test."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.ending import Manner
from ops.guardian import Guardian
from ops.ports import free_port
from ops.processes import Command, Process
from support.postgres import Database
from support.valkey import Valkey
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
READY_SECONDS = 30.0
HTTP_SECONDS = 5.0
# Nothing of the developer's own configuration reaches a process under test.
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")


class Running:
    """A process under test.

    Attributes:
        name: of its log.
        env: the variables it was given on top of the kept ones.

    """

    def __init__(self, name: str, process: Process, env: dict[str, str]) -> None:
        self.name = name
        self.process = process
        self.env = env

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def worker_pid(self) -> int:
        """The worker process below dramatiq's main process."""
        for child in psutil.Process(self.pid).children():
            if "multiprocessing" not in " ".join(child.cmdline()):
                return int(child.pid)
        pytest.fail("no worker process")

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.returncode

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def url(self) -> str:
        """The base URL of its pages: the portal's API, or the health page of relay and worker."""
        if "ONCOMMIT_HEALTH_FILE" in self.env:
            return Path(self.env["ONCOMMIT_HEALTH_FILE"]).read_text(encoding="utf-8").strip().rstrip("/")
        return f"http://127.0.0.1:{self.env['ONCOMMIT_PORT']}"

    def get(self, path: str) -> int:
        """GET a page and return the status; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=HTTP_SECONDS) as answer:  # noqa: S310 -- ours
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:  # no health file yet, refused, timed out
            return 0

    def page(self, path: str) -> str:
        """GET a page and return its text, whatever the status."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=HTTP_SECONDS) as answer:  # noqa: S310 -- ours
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def wait_ready(self, path: str = "/readyz", timeout: float = READY_SECONDS) -> "Running":
        """Return when it says that it is ready."""

        def ready() -> bool:
            if not self.running:
                pytest.fail(f"{self.name} ended with {self.returncode}:\n{self.process.log_tail()}")
            return self.get(path) == 200

        eventually(ready, timeout=timeout, describe=lambda: f"{self.name} ready:\n{self.process.log_tail()}")
        return self

    def wait_log(self, text: str, timeout: float = 20.0) -> None:
        """Return when its log holds `text`."""
        eventually(
            lambda: text in self.log_text(), timeout=timeout, describe=f"{text!r} in the log of {self.name}"
        )

    def wait_ended(self, timeout: float = 20.0) -> int:
        """Return its code when it has ended by itself."""
        eventually(lambda: not self.running, timeout=timeout, describe=f"{self.name} ends")
        code = self.returncode
        assert code is not None
        return code

    def log_text(self) -> str:
        return self.process.log_text()

    def log_lines(self) -> list[dict[str, Any]]:
        """Its log lines that are JSON objects."""
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]

    def signal(self, number: int) -> None:
        """Signal its main process only."""
        self.process.signal(number)

    def kill(self) -> None:
        """SIGKILL it and everything that it started."""
        self.process.kill()

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL after 30 s; return its code."""
        return self.process.end()

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()

    def restart(self) -> "Running":
        """Start it again with the same command, after it ended."""
        if "ONCOMMIT_HEALTH_FILE" in self.env:
            Path(self.env["ONCOMMIT_HEALTH_FILE"]).unlink(missing_ok=True)
        self.process.start()
        return self


class Processes:
    """Starts processes for one test, by default against its `database` and `valkey`."""

    def __init__(self, folder: Path, guardian: Guardian, database: Database, valkey: Valkey) -> None:
        self.folder = folder
        self.database = database
        self.valkey = valkey
        self.render_log = folder / "renders.jsonl"
        self.blobs = folder / "blobs"
        self._guardian = guardian
        self.started: list[Running] = []

    def start(self, name: str, argv: list[str], env: Mapping[str, str]) -> Running:
        """Start any command; `name` must be new for its log's sake. It is not waited for."""
        kept = {key: os.environ[key] for key in KEPT if key in os.environ}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        command = Command(
            name=name,
            argv=argv,
            log=self.folder / f"{name}-{len(self.started)}.log",
            env={**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **env},
            manner=Manner(((15, 30.0),)),
            cwd=self.folder,
        )
        process = Process(command, self._guardian)
        process.start()
        running = Running(name, process, dict(env))
        self.started.append(running)
        return running

    def environment(self, role: str, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a process of that role; `env` has the last word."""
        assert role in {"portal", "relay", "worker", "operator", "viewer"}
        return {
            "ONCOMMIT_DATABASE_URL": self.database.url(role),  # type: ignore[arg-type]
            "ONCOMMIT_REDIS_URL": self.valkey.url,
            "ONCOMMIT_BLOBS": str(self.blobs),
            "ONCOMMIT_RENDER_LOG": str(self.render_log),
            "ONCOMMIT_SIMULATION": "1",
            "ONCOMMIT_SLOT": self.database.slot,
            "ONCOMMIT_LOG_LEVEL": "debug",
            **env,
        }

    def portal(self, *, ready: bool = True, **env: str) -> Running:
        """Start a portal; keyword arguments are variables in full (`ONCOMMIT_MAX_DOCUMENT_BYTES="100"`)."""
        given = self.environment("portal", {"ONCOMMIT_PORT": str(free_port()), **env})
        running = self.start("portal", [sys.executable, "-m", "portal"], given)
        return running.wait_ready() if ready else running

    def relay(self, *, ready: bool = True, **env: str) -> Running:
        """Start a relay."""
        given = self.environment("relay", {**self._health("relay"), **env})
        running = self.start("relay", [sys.executable, "-m", "relay"], given)
        return running.wait_ready() if ready else running

    def worker(
        self, *, threads: int = 4, ready: bool = True, setup: str = "actors:setup", **env: str
    ) -> Running:
        """Start a Dramatiq process with one worker process of so many threads."""
        given = self.environment("worker", {**self._health("worker"), **env})
        argv = [sys.executable, "-m", "dramatiq", setup, "-p", "1", "-t", str(threads)]
        running = self.start("worker", argv, given)
        return running.wait_ready() if ready else running

    def _health(self, name: str) -> dict[str, str]:
        return {"ONCOMMIT_HEALTH_FILE": str(self.folder / f"{name}-{len(self.started)}.url")}

    def renders(self) -> list[dict[str, Any]]:
        """Every whole line of the render log: who reads while a line is written may see a part of it."""
        if not self.render_log.exists():
            return []
        whole, _, _ = self.render_log.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """End all of them, latest first."""
        for running in reversed(self.started):
            if running.running:
                running.thaw()
            running.process.command = _impatient(running.process.command)
            running.stop()


def _impatient(command: Command) -> Command:
    # The test is over: whoever does not end in 5 s is killed, so that no fault costs half a minute.
    return Command(
        command.name, command.argv, command.log, command.env, Manner(((15, 5.0),)), cwd=command.cwd
    )


@pytest.fixture
def processes(
    request: pytest.FixtureRequest, tmp_path: Path, guardian: Guardian, database: Database, valkey: Valkey
) -> Iterator[Processes]:
    """Real processes; their logs are printed when the test fails."""
    found = Processes(tmp_path, guardian, database, valkey)
    yield found
    found.close()
    report = getattr(request.node, "oncommit_call", None)
    if report is not None and report.failed:
        for running in found.started:
            print(f"\n--- {running.name} ({running.returncode}) {running.process.command.log}")  # noqa: T201
            print(running.process.log_tail())  # noqa: T201
