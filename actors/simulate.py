"""Faults that a job may ask for in tests and demonstrations (`ONCOMMIT_SIMULATION=1` at the portal).

| key                | what happens, in the renderer child, before it draws                         |
|--------------------|------------------------------------------------------------------------------|
| `sleep_ms`         | it takes so long                                                             |
| `fail_first`       | the first k attempts fail                                                    |
| `fail_permanently` | an error that no other attempt can mend                                      |
| `crash`            | true or "child": the child kills itself; "worker": the worker process does   |
| `hang`             | it never comes back                                                          |
| `allocate_mb`      | it asks for so much memory                                                   |
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from actors.errors import DocumentError, PermanentError


def act(faults: Mapping[str, Any], *, attempt: int) -> None:
    """Do in the child what `faults` asks of this attempt.

    Raises:
        DocumentError, PermanentError, MemoryError: the simulated failures.

    """
    time.sleep(faults.get("sleep_ms", 0) / 1000)
    if faults.get("crash") in {True, "child"}:
        os.kill(os.getpid(), signal.SIGKILL)
    if faults.get("hang"):
        threading.Event().wait()
    held = bytearray(faults.get("allocate_mb", 0) << 20)
    if attempt <= faults.get("fail_first", 0):
        raise DocumentError(f"simulated failure of attempt {attempt}", error_class="SimulatedFailure")
    if faults.get("fail_permanently"):
        raise PermanentError("simulated permanent failure", error_class="SimulatedPermanentFailure")
    del held


def kill_worker_if_asked(faults: Mapping[str, Any] | None) -> None:
    """Kill this worker process, as a document that takes its worker along would."""
    if faults and faults.get("crash") == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
