"""A failpoint that a fault arms in one process, and the proof that the process died of it."""

import signal
import time
from contextlib import suppress
from pathlib import Path

from support.waiting import eventually

from .history import History
from .member import Member

#: Another relay takes over within 5 s, and clients go on asking all the time.
FIRE_SECONDS = 15.0


class Armed:
    """A member that was started anew to kill itself at the `nth` pass of `point`."""

    def __init__(self, member: Member, point: str, nth: int) -> None:
        self._member = member
        self._point = point
        self._since, self._read = time.time(), self._log.stat().st_size
        member.restart_with(ONCOMMIT_FAILPOINTS=f"{point}=kill@{nth}")

    def tell(self, history: History, fault: str) -> None:
        """Wait until it has died of that, and of nothing else, and write down whether it has.

        While other things are broken it may not: the invariant knows.
        """
        with suppress(AssertionError):
            eventually(lambda: self._fired(history), timeout=FIRE_SECONDS)
        history.add(
            "failpoint",
            fault=fault,
            process=self._member.name,
            fired=self._fired(history),
            since=self._since,
        )

    @property
    def _log(self) -> Path:
        return self._member.running.process.command.log

    def _fired(self, history: History) -> bool:
        with self._log.open("rb") as log:
            log.seek(self._read)
            said = f"failpoint {self._point}: kill\n".encode() in log.read()
        ends = [e for e in history.of("ended") if e["process"] == self._member.name and e["at"] > self._since]
        return said and any(end["code"] == -signal.SIGKILL for end in ends)
