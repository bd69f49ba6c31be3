"""oncommit's worker with a renderer that does nothing, in the worker's own thread: what is left is ours.

`dramatiq benchmarks.bench.inline:setup` runs it. The claim, its events, the store, the finish and the
acknowledgement are production's; only the renderer's child process is not there.
"""

from collections.abc import Mapping
from typing import Any

from actors import parts, worker_process
from actors.renderer import Limits

#: Every preview: its blob is stored once and found afterwards.
PREVIEW = b"nothing"


class NoRenderers:
    """Stands for `actors.child.Renderers` and for each of its children."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def warm_up(self, children: int) -> None:
        """Start nothing."""

    def take(self) -> "NoRenderers":
        """Return what renders."""
        return self

    def give(self, child: "NoRenderers") -> None:
        """Take it back."""

    def render(self, request: Mapping[str, Any], timeout: float) -> bytes:
        """Do nothing."""
        del request, timeout
        return PREVIEW

    def kill(self) -> None:
        """End nothing."""

    def close(self) -> None:
        """End nothing."""


def setup() -> None:
    """Build the worker's broker; see `actors.setup`."""
    parts.Renderers = NoRenderers  # type: ignore[assignment,misc]
    worker_process.set_up()
