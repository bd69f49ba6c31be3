"""What a renderer child takes away from itself before it sees its first document.

Holds on Linux; other systems get what they have (process group, time limit, most of the rlimits).
A process of root is not bound by RLIMIT_NPROC, so there a fork is found out and killed, not prevented.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded once, in the fork server
_MAX_OPEN_FILES = 64  # the socket, the document, fonts: a handful, with room


def detach(keep: int) -> None:
    """Leave the worker's process group, and every descriptor but `keep`; standard ones become /dev/null.

    A child that survives its worker would hold the worker's sockets open; one that shares its group
    would be hit by signals meant for it.
    """
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for fd in _open_descriptors():
        if fd > 2 and fd != keep:  # noqa: PLR2004 -- the three standard descriptors
            with suppress(OSError):
                os.close(fd)


def _open_descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return [int(name) for name in os.listdir(folder)]  # noqa: PTH208 -- names are numbers here
    return list(range(3, 1024))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent (the fork server) ends; find orphans' orphans."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # A core that is piped to a program ignores RLIMIT_CORE; this does not.
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit(memory_bytes: int) -> None:
    """Bound memory (what is mapped now plus `memory_bytes`), files, processes and cores of this process."""
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_FSIZE, 0)  # a renderer answers through its socket: it has no file to write
    _set(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    if mapped := mapped_bytes():
        _set(resource.RLIMIT_AS, mapped + memory_bytes)
    if os.geteuid() != 0 and sys.platform == "linux":
        _set(resource.RLIMIT_NPROC, 0)


def _set(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (bound, bound))


def mapped_bytes() -> int:
    """Return the size of this process's address space in bytes, 0 where that cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 -- called after every render
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def has_children() -> bool:
    """Tell whether this process has started others, alive or not yet collected."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
