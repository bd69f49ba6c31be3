"""Failpoints: named places where a test may stop, kill or fail a real process.

`ONCOMMIT_FAILPOINTS=relay.before_publish=kill,accept.after_commit=raise` arms them; without the
variable `failpoint()` is one dictionary look-up that finds nothing.

Actions: `kill` (SIGKILL to this process), `raise` (FailpointError), `pause:FILE` (create FILE, then
wait until it is gone). A name that is not in runtime/failpoint_names.py, or another action, is refused at
start.
`kill@N` and `raise@N` act at the Nth pass only.
"""

import os
import signal
import time
from collections import Counter
from pathlib import Path

from runtime.failpoint_names import armed
from runtime.settings import settings


class FailpointError(RuntimeError):
    """Raised at a failpoint that is armed with `raise`."""


_passes: Counter[str] = Counter()


_actions: dict[str, str] | None = None


def failpoint(name: str) -> None:
    """Do what `ONCOMMIT_FAILPOINTS` says of `name`; nothing when it is not named there."""
    global _actions  # noqa: PLW0603 -- read once: the environment of a process does not change
    if _actions is None:
        _actions = armed(settings().failpoints)
    if (action := _actions.get(name)) is None:
        return
    _passes[name] += 1
    if action.startswith("pause:"):
        gate = Path(action.removeprefix("pause:"))
        gate.touch()
        while gate.exists():
            time.sleep(0.005)
        return
    action, _, nth = action.partition("@")
    if nth and _passes[name] != int(nth):
        return
    if action == "kill":
        # So that whoever armed it can tell this end from any other.
        os.write(2, f"failpoint {name}: kill\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    raise FailpointError(f"failpoint {name}")
