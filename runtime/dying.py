"""How a process ends that has something broken in it: at once, and so that whatever supervises it sees it."""

import logging
import os
import sys
from typing import Final, NoReturn

#: EX_SOFTWARE of sysexits.h: whatever supervises this process has to start a new one.
BROKEN: Final = 70

# Not runtime.logs: a worker of somebody's own, that has set up no logs, is to say it too, on stderr.
log = logging.getLogger(__name__)


def die(reason: str) -> NoReturn:
    """End this process at once: a part of it is dead, and it must not look healthy.

    The exception that is being handled is told too. From any thread.

    Raises:
        SystemExit: this process ends already; then only the thread does.

    """
    if sys.is_finalizing():
        raise SystemExit(BROKEN)
    log.critical("ending this process: %s", reason, exc_info=sys.exc_info()[0] is not None)
    os._exit(BROKEN)
