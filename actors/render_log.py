"""The render log: one JSON line when a render starts and one when it ended, for counting from outside.

It is a witness that does not trust the tables: tests count starts, overlaps and successes from it.
"""

import os
import time
from pathlib import Path
from typing import Literal
from uuid import UUID

import orjson

from db.claims import Claim
from runtime.logs import get_logger

log = get_logger(__name__)


class RenderLog:
    """Appends to `path`, or does nothing when there is none.

    Each line is a single write to a descriptor opened with O_APPEND, so lines of several processes do
    not mix, and a line is whole even if the process is killed right after. A witness stops nothing: a line
    that the disk does not take is missing, and said to be.
    """

    def __init__(self, path: Path | None, worker: UUID) -> None:
        self._worker = str(worker)
        self._failing = False
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def started(self, claim: Claim) -> None:
        """Say that the renderer is about to be given this claim's document."""
        self._write(claim, "start", "")

    def ended(self, claim: Claim, outcome: str) -> None:
        """Say that the render is over: `rendered`, or the error's class."""
        self._write(claim, "end", outcome)

    def _write(self, claim: Claim, phase: Literal["start", "end"], outcome: str) -> None:
        if self._fd is None:
            return
        line = {
            "phase": phase,
            "job": str(claim.job),
            "dispatch": claim.dispatch_no,
            "attempt": claim.attempt,
            "team": claim.team,
            "pid": os.getpid(),
            "worker": self._worker,
            "outcome": outcome,
            "time": time.time(),  # seconds since 1970, by this machine's clock
        }
        try:
            os.write(self._fd, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            if not self._failing:
                log.error("the render log takes no lines", reason=error.strerror)  # noqa: TRY400 -- says it all
            self._failing = True
        else:
            self._failing = False

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
