"""The fork server of a worker process: started once, and the folder of its socket swept after a kill.

`multiprocessing` puts the socket into a folder of its own below TMPDIR, and removes it when the process ends
in order. A worker that is killed leaves it there, and nobody else ever looks: so each one marks its folder by
a file that it holds locked while it lives, and removes those that nobody holds when it starts.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

PRELOAD = ["actors.renderer", "actors.warmed", "dramatiq.__main__"]
#: The mark in a folder of ours. Folders without it belong to other programs that use `multiprocessing`.
MARK = "oncommit"
_held: list[int] = []  # the descriptor of the mark: closed by the end of the process, however that comes


def ensure() -> None:
    """Start the fork server, with SIGTERM and the like blocked: it and the children end with the worker.

    A stop that signals the whole process group or container would otherwise kill renders that are to
    have their grace. For one thread at a time.

    Raises:
        OSError: there is no room for it.

    """
    if not _held:
        sweep(Path(tempfile.gettempdir()))
        _held.append(mark(Path(util.get_temp_dir())))
    forkserver.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # first: starting it unblocks the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def mark(folder: Path) -> int:
    """Mark a folder as that of a living process; return the descriptor that holds it."""
    draft = folder / "draft"
    held = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    draft.rename(folder / MARK)  # locked already when anybody can find it
    return held


def sweep(temporary: Path) -> None:
    """Remove the folders of dead processes; whatever cannot be read or removed is somebody else's."""
    for found in temporary.glob(f"pymp-*/{MARK}"):
        # Another user's, held by a living process, or swept by another worker just now.
        with suppress(OSError):
            descriptor = os.open(found, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(found.parent)
            finally:
                os.close(descriptor)
