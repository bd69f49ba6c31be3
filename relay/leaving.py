"""Leaving: SIGTERM ends the process within a second, whatever server holds up a call of its loop.

In order, that is `Relay.run` returning, takes a few tenths of a second. But a call to a frozen Redis lasts
2 s, one to a frozen PostgreSQL up to 10 s, and what would end them earlier would end good ones, too. So
the process then leaves in the middle of the call. Nothing is left undone: what the relay holds is in the
tables, and the next one publishes it; hence exit code 0. Spans that were not sent yet are lost.
"""

import os
import signal
import time
from collections.abc import Callable
from threading import Thread
from types import FrameType
from typing import Final

from runtime.logs import get_logger

log = get_logger(__name__)

#: For the stop in order; the rest of the second is for a machine that is busy.
LEAVE_SECONDS: Final = 0.8
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Let SIGTERM and SIGINT call `stop`, and end the process, with code 0, LEAVE_SECONDS after the first.

    Call once, from the main thread. `stop` runs inside a signal handler, and inside itself when a second
    signal comes: it may only set a flag.
    """
    # Python writes each signal's number there as it arrives, also when the main thread stands in a call and
    # runs no handler. And nothing locks: a handler that began a timer might stand still over a lock of
    # `threading` that the very code it interrupted holds.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    Thread(target=_leave, args=(reading,), name="leaving", daemon=True).start()

    def handle(_: int, __: FrameType | None) -> None:
        stop()

    for number in SIGNALS:
        signal.signal(number, handle)


def _leave(reading: int) -> None:
    """Wait for a signal, and leave after the time of a stop in order, which ends this thread, too."""
    os.read(reading, 1)
    time.sleep(LEAVE_SECONDS)
    log.warning("relay.leaves", reason="a server holds up the stop in order")
    os._exit(0)
