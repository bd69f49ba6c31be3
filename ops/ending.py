"""End a process and everything it started: asked first, then told, then killed.

Used by the launcher for an orderly stop and by its guardian when the launcher was killed, so both roads
leave the same nothing behind.
"""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ops import proctable
from ops.proctable import Entry

# What a main process leaves to itself (a fork server notices that its pipe closed) gets this long.
FAMILY_GRACE_SECONDS = 1.0
# The kernel may take a moment to tear a big process down after SIGKILL; longer means an uninterruptible wait.
KILL_SECONDS = 10.0
LOOK_EVERY_SECONDS = 0.02
# Orphans get less than their main process would have given them: others wait for their restart meanwhile.
ORPHAN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How to ask: each signal in turn with the seconds it is given; SIGKILL comes after the last."""

    steps: tuple[tuple[int, float], ...] = ((signal.SIGTERM, 10.0),)


def running(entries: Iterable[Entry]) -> list[Entry]:
    """Return those of `entries` that still run."""
    # The parent field changes when the parent dies, so only pid and start time name a process.
    return [e for e in entries if (now := proctable.find(e.pid)) is not None and now.started == e.started]


def _signal(entry: Entry, number: int) -> None:
    try:
        os.kill(entry.pid, number)
    except ProcessLookupError:
        return


def _wait(entries: list[Entry], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while running(entries):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_SECONDS)
    return True


def kill(entries: list[Entry]) -> None:
    """SIGKILL those that still run, and wait until they are gone."""
    for entry in running(entries):
        _signal(entry, signal.SIGKILL)
    _wait(entries, KILL_SECONDS)


def end_all(entries: list[Entry]) -> None:
    """Ask those with SIGTERM, then SIGKILL them; return when none runs."""
    for entry in running(entries):
        _signal(entry, signal.SIGTERM)
        _signal(entry, signal.SIGCONT)  # a stopped process handles no signal but SIGKILL
    if not _wait(entries, ORPHAN_SECONDS):
        kill(entries)


def kill_family(pid: int) -> None:
    """SIGKILL `pid` and everything it started, also what it starts meanwhile."""
    while left := proctable.family(pid):
        kill(left)


def end(pid: int, manner: Manner) -> None:
    """End `pid` and its family; return when none of them runs. Nothing happens when it has ended."""
    leader = proctable.find(pid)
    before = proctable.family(pid)
    if leader is not None:
        # A stopped process handles no signal but SIGKILL.
        for number, seconds in manner.steps:
            _signal(leader, number)
            _signal(leader, signal.SIGCONT)
            if _wait([leader], seconds):
                break
        else:
            before = [*before, *proctable.family(pid)]
            kill([leader])
    # Those it started meanwhile are found by its session, those that left the session by the look before.
    if not _wait([*before, *proctable.family(pid)], FAMILY_GRACE_SECONDS):
        kill(before)
        kill_family(pid)
