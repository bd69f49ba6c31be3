"""A worker with one of the evil renderers: `dramatiq support.evil_worker:setup` runs it.

The product has no setting for the renderer's place; everything else of this worker is the product's.
"""

import os
from functools import partial
from unittest.mock import patch

import actors
from actors.child import Renderers

#: The variable that names the function of `support.evil_renderers`.
VARIABLE = "EVIL_RENDERER"


def setup() -> None:
    """Set the worker up with the renderer that the variable names, until its process ends."""
    target = f"support.evil_renderers:{os.environ[VARIABLE]}"
    patch("actors.parts.Renderers", partial(Renderers, target=target)).start()
    actors.setup()
