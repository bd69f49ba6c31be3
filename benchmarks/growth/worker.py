"""A worker with the renderer of ready.py: `dramatiq benchmarks.growth.worker:setup` runs it."""

from functools import partial
from unittest.mock import patch

import actors
from actors.child import Renderers


def setup() -> None:
    """Set the worker up, as `actors:setup` does, until its process ends."""
    patch("actors.parts.Renderers", partial(Renderers, target="benchmarks.growth.ready:ready")).start()
    actors.setup()
