"""One process of the stack: started in its own session, its output in a file, watched by the guardian.

What a start leaves when its main process alone is killed is ended before the next start: a worker that
outlived its launcher would go on beside the new one, unseen.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ops import ending, proctable
from ops.account import Account, PopenAccount
from ops.ending import Manner
from ops.guardian import Guardian

LOG_TAIL_LINES = 15
LOOK_EVERY_SECONDS = 0.05
EXITED_GRACE_SECONDS = 5.0
# In the environment of everything that a start has brought forth; set by `Process`, read by nobody else.
PART = "ONCOMMIT_STACK_PART"


class StartError(RuntimeError):
    """A process did not become ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run.

    Attributes:
        name: for humans, and of the log file.
        argv: program and arguments.
        log: file to which standard output and standard error are appended.
        env: the whole environment; the guardian's tag is added.
        manner: how it is asked to end.
        account: None runs it as the launcher.

    """

    name: str
    argv: list[str]
    log: Path
    env: dict[str, str]
    manner: Manner = field(default_factory=Manner)
    account: Account | None = None
    cwd: Path | None = None


class Process:
    """A started `Command`; `restart` starts it again under the same name."""

    def __init__(self, command: Command, guardian: Guardian) -> None:
        self.command = command
        self.name = command.name
        self._guardian = guardian
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._part = secrets.token_hex(16)

    def start(self) -> None:
        """Start it, after whatever its last start has left behind was ended.

        Raises:
            StartError: the program cannot be run.

        """
        if self._popen is not None and not self.running:
            self._end_orphans(self._popen.pid)
        account: PopenAccount = self.command.account.popen() if self.command.account else {}
        with self.command.log.open("ab") as log:
            self._log_start = log.tell()
            try:
                self._popen = subprocess.Popen(  # noqa: S603 -- our own command line
                    self.command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.command.env | self._guardian.environment | {PART: self._part},
                    cwd=self.command.cwd,
                    start_new_session=True,
                    **account,
                )
            except OSError as error:
                raise StartError(
                    f"{self.name}: cannot run {self.command.argv[0]}: {error.strerror}"
                ) from error
        self._guardian.watch(self._popen.pid, self.command.manner)

    @property
    def pid(self) -> int:
        """Return the pid of the last start.

        Raises:
            StartError: it was never started.

        """
        if self._popen is None:
            raise StartError(f"{self.name} was not started")
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Return how the last start ended, as `subprocess` counts; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    @property
    def running(self) -> bool:
        """Tell whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process; nothing happens when it has ended."""
        if self._popen is not None:
            self._popen.send_signal(number)

    def freeze(self) -> None:
        """Stop every process of the family until `thaw`."""
        self._signal_family(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen family run on."""
        self._signal_family(signal.SIGCONT)

    def _signal_family(self, number: int) -> None:
        for entry in proctable.family(self.pid):
            with contextlib.suppress(ProcessLookupError):  # a backend may end between the look and the signal
                os.kill(entry.pid, number)

    def end(self) -> int | None:
        """Ask it to end, then make it; return its code. Its whole family is gone afterwards."""
        return self._ended(lambda pid: ending.end(pid, self.command.manner))

    def kill(self) -> int | None:
        """SIGKILL it and its whole family."""
        return self._ended(ending.kill_family)

    def _ended(self, how: Callable[[int], None]) -> int | None:
        if self._popen is None:
            return None
        how(self._popen.pid)
        code = self._popen.wait(EXITED_GRACE_SECONDS)
        self._guardian.forget(self._popen.pid)
        return code

    def _end_orphans(self, pid: int) -> None:
        """End what the main process `pid`, which has ended, left behind; its pid may be another's by now."""
        # The mark finds also what has left the session; the session what shows nobody its environment. As
        # long as there is one in the session, no other process gets its number.
        table = proctable.everybody()
        orphans = {} if pid in table else {e.pid: e for e in table.values() if e.session == pid}
        orphans |= {e.pid: e for e in proctable.tagged(f"{PART}={self._part}")}
        ending.end_all([*orphans.values()])
        self._guardian.forget(pid)

    def log_text(self) -> str:
        """Return what it has written since its last start."""
        try:
            with self.command.log.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        """Return the last lines that it wrote."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when `ready()` holds.

        Raises:
            StartError: it ended first, or the time ran out.

        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise StartError(f"{self.name} ended with code {self.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} is not ready after {seconds:g} s:\n{self.log_tail()}")
            time.sleep(LOOK_EVERY_SECONDS)
