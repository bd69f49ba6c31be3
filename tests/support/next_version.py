"""A worker of the next version, which knows messages of version 2: `dramatiq support.next_version:setup`."""

from typing import Any

import actors
from broker.lane_broker import LaneBroker


def setup() -> None:
    """Make this process such a worker."""
    defaults: dict[str, Any] = LaneBroker.__init__.__kwdefaults__ or {}
    assert defaults["supported_version"] == 1
    defaults["supported_version"] = 2
    actors.setup()
