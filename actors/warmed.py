"""Imported by the fork server only: draws a page once, so that no child pays for what the first one loads.

Pillow imports its formats when it first saves a picture. A new child's first page took 120 ms of processor
time by that, and takes 20 ms now (Pillow 13, 2 cores); documents that fail, one after another, make a new
child each, and whatever renders beside them waited for it.
"""

from contextlib import suppress
from pathlib import Path

from actors import mock_renderer

with suppress(OSError):  # without its source it is only slower
    mock_renderer.render(Path(__file__), digest=f"sha256:{'00' * 32}", kind="thumbnail")
