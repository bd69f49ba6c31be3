"""The fork server of a worker process: started once, and the folder of its socket swept after a kill.

`multiprocessing` puts the socket into a folder of its own below TMPDIR, and removes it when the process ends
in order. A worker that is killed leaves it there, and nobody else ever looks: so each one marks its folder by
a file that it holds locked while it lives, and when it starts removes those in which nobody holds a mark.
Workers can share a folder: `multiprocessing` hands a parent's on if it has one, as when /dev/shm is full.

All this is housekeeping: where it fails (NFS without locks), one line says so and rendering goes on.
"""

import fcntl
import os
import shutil
import signal
import tempfile
import uuid
from contextlib import ExitStack, suppress
from functools import cache
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

from runtime.logs import get_logger

log = get_logger(__name__)

PRELOAD = ["actors.renderer", "actors.warmed", "dramatiq.__main__"]
#: What the name of each mark begins with. Folders without one belong to other programs.
MARK = "oncommit"


def ensure() -> None:
    """Start the fork server, with SIGTERM and the like blocked: it and the children end with the worker.

    A stop that signals the whole process group or container would otherwise kill renders that are to
    have their grace. For one thread at a time.

    Raises:
        OSError: there is no room for it.

    """
    _keep_house()
    forkserver.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # first: starting it unblocks the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache  # once for the process, also when it fails; the descriptor is closed by the end of the process
def _keep_house() -> int | None:
    held = None
    try:
        own = Path(util.get_temp_dir())
        held = mark(own)
        sweep(Path(tempfile.gettempdir()), own)
    except OSError as error:
        log.warning("folders of killed workers may stay in the temporary folder: %s", error)
    return held


def mark(folder: Path) -> int:
    """Mark a folder as that of one more living process; return the descriptor that holds the mark.

    Raises:
        OSError: it could not be marked, and is as it was.

    """
    name = uuid.uuid4().hex  # process ids repeat, in containers that share a folder too
    draft = folder / f"draft-{name}"
    held = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        draft.rename(folder / f"{MARK}-{name}")  # locked already when anybody can find it
    except OSError:
        os.close(held)
        with suppress(OSError):
            draft.unlink()
        raise
    return held


def sweep(temporary: Path, own: Path) -> None:
    """Remove the folders of dead processes, but for this one's `own`.

    Whatever cannot be read or removed is somebody else's.
    """
    for folder in {found.parent for found in temporary.glob(f"pymp-*/{MARK}*")} - {own}:
        # Another user's, held by a living process, or swept by another worker just now.
        with suppress(OSError), ExitStack() as held:
            for found in sorted(folder.glob(f"{MARK}*")):
                descriptor = os.open(found, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                if os.fstat(descriptor).st_uid != os.geteuid():
                    raise PermissionError(found)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
