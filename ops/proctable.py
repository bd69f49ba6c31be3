"""The machine's process table: who runs, whose child, in which session.

A pid alone is no identity (it is given again), and `kill(pid, 0)` calls a zombie alive. So a process is
known here by (pid, start time), and one that waits to be reaped counts as ended.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
ENDED = frozenset("ZX")  # proc(5): zombie, dead


@dataclass(frozen=True, slots=True)
class Entry:
    """One running process. `started` is opaque: equal for the same process, different for a later one."""

    pid: int
    parent: int
    session: int
    started: str


def _from_proc(folder: Path) -> Entry | None:
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended between the listing and the look
        return None
    # proc(5): the name is in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ENDED:
        return None
    return Entry(pid=int(folder.name), parent=int(fields[1]), session=int(fields[3]), started=fields[19])


def _from_ps() -> Iterator[Entry]:
    table = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "lstart="],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for line in table.splitlines():
        pid, parent, state, started = line.split(None, 3)
        if state[0] in ENDED:
            continue
        try:
            session = os.getsid(int(pid))
        except OSError:
            continue
        yield Entry(pid=int(pid), parent=int(parent), session=session, started=started)


def everybody() -> dict[int, Entry]:
    """Return every running process by pid; from /proc, or from `ps` where there is none (macOS)."""
    if not (PROC / "self" / "stat").exists():
        return {entry.pid: entry for entry in _from_ps()}
    folders = (folder for folder in PROC.iterdir() if folder.name.isdigit())
    return {entry.pid: entry for folder in folders if (entry := _from_proc(folder)) is not None}


def find(pid: int) -> Entry | None:
    """Return the running process `pid`, or None when it has ended."""
    if (PROC / "self" / "stat").exists():
        return _from_proc(PROC / str(pid))
    return everybody().get(pid)


def family(pid: int) -> list[Entry]:
    """Return `pid`, its descendants, and the other members of a session that it leads.

    A descendant may have left the session, and a member may have lost its parent: both count.
    """
    table = everybody()
    members = {entry.pid for entry in table.values() if pid in (entry.pid, entry.session)}
    grown = True
    while grown:
        children = {entry.pid for entry in table.values() if entry.parent in members}
        grown = not children <= members
        members |= children
    members.discard(os.getpid())
    return [table[member] for member in members if member in table]


def tagged(tag: str) -> list[Entry]:
    """Return the processes whose environment holds the bytes `tag`; none where there is no /proc.

    It finds what no record names: a process started just before its launcher died.
    """
    found: list[Entry] = []
    for entry in everybody().values():
        try:
            environment = (PROC / str(entry.pid) / "environ").read_bytes()
        except OSError:  # ended, or another user's: not ours
            continue
        if tag.encode() in environment.split(b"\0"):
            found.append(entry)
    return found
