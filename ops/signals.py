"""The launcher's signals: every polite way to end it means Ctrl-C, and an orderly stop is not disturbed."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


def interrupt_on_termination() -> None:
    """Treat SIGTERM and a closed terminal like Ctrl-C: KeyboardInterrupt in the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # A shell starts background jobs with SIGINT ignored, and Python keeps it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def undisturbed() -> Generator[None]:
    """Ignore a second Ctrl-C meanwhile; SIGKILL still works, and then the guardian takes over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
