"""What the operating system keeps of a stack: processes, temporary files, shared memory, files of its folder.

Everything that the stack starts has a temporary folder of its own here (`TMPDIR`): each entry in it is the
stack's. Metrics are in memory: there is no folder of theirs. Where there is no /proc, processes are found by
their descent only, and shared memory is not looked at.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ops import proctable
from ops.stack import Stack

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- it is looked at, and nothing is made there
FORK_SERVER = "multiprocessing.forkserver"
RENDERERS = "renderers"
#: What lies in a folder of the stack and is no document, preview or server's data: logs, addresses, drafts.
KEPT = ("logs", "blobs/incoming")


@dataclass(frozen=True, slots=True)
class Kept:
    """Numbers by what they count; `names` is what to look for when one of them has grown."""

    counts: dict[str, int]
    names: dict[str, list[str]]

    def grown(self, before: "Kept", renderers: int) -> list[str]:
        """Return what there is more of than before, with names; of renderers, more than that.

        One that has failed is replaced when it is needed: some may have been missing before.
        """
        most = before.counts | {RENDERERS: renderers}
        return [
            f"{what}: {most.get(what, 0)} -> {count}: {', '.join(self.names[what][:10])}"
            for what, count in self.counts.items()
            if count > most.get(what, 0)
        ]


def look(stack: Stack, temporary: Path) -> Kept:
    """Return what is there now."""
    pids = _pids(temporary)
    ours = _titles(pids - _of_servers(stack))
    servers = {pid for pid, title in ours.items() if FORK_SERVER in title}
    forked = {pid for pid in servers if (entry := proctable.find(pid)) and entry.parent in servers}
    found = {
        "processes of workers, relay and portals": [ours[pid] for pid in ours.keys() - forked],
        RENDERERS: [ours[pid] for pid in forked],
        "temporary files and folders": [_place(path, temporary) for path in temporary.rglob("*")],
        "files in " + ", ".join(KEPT): [
            _place(path, stack.home.path) for folder in KEPT for path in (stack.home.path / folder).rglob("*")
        ],
        "shared memory": _shared(pids),
    }
    return Kept({what: len(names) for what, names in found.items()}, {w: sorted(n) for w, n in found.items()})


def _pids(temporary: Path) -> set[int]:
    """Return the processes of the stack: what descends from this one, and what has lost its parent.

    The temporary folder is this stack's alone, so it marks whatever a process of the stack has started.
    """
    found = {entry.pid for entry in proctable.family(os.getpid())}
    return found | {entry.pid for entry in proctable.tagged(f"TMPDIR={temporary}")}


def _of_servers(stack: Stack) -> set[int]:
    """Return the servers' processes: PostgreSQL's come and go with connections and autovacuum."""
    servers = [pid for name, pid in stack.pids().items() if name in {"postgres", "valkey"}]
    return {entry.pid for pid in servers for entry in proctable.family(pid)}


def _titles(pids: set[int]) -> dict[int, str]:
    """Return the command lines, which a fork has from its parent."""
    told: dict[int, str] = {}
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile, or there is no /proc
            words = (proctable.PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
            told[pid] = f"{pid} {words.decode(errors='replace')[:80]}"
    return told


def _place(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _shared(pids: set[int]) -> list[str]:
    """Return the pieces of shared memory that the stack has, and those that nobody has: what a dead one left.

    Others on this machine have theirs, and theirs are not counted as long as they live. What a PostgreSQL has
    left is another's: the stack's is not ended meanwhile.
    """
    if not SHARED_MEMORY.is_dir() or not proctable.PROC.is_dir():
        return []
    ours, others = set[str](), set[str]()
    for pid in proctable.everybody():
        try:
            text = (proctable.PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        (ours if pid in pids else others).update(re.findall(rf"{SHARED_MEMORY}/(\S+)", text))
    there = {path.name for path in SHARED_MEMORY.iterdir()}
    nobodys = {name for name in there - ours - others if not name.startswith("PostgreSQL.")}
    return sorted(there & ours | nobodys)
