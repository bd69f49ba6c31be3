"""A renderer that has its preview ready: restarts and leftovers are tried here, and not Pillow.

Each render still is a request to a child process, an attempt, an artifact and a finish. It imports only what
the fork server has imported already: each of the 2 % of failures makes a new child.
"""

from functools import cache
from pathlib import Path

from actors.mock_renderer import render


@cache
def _drawn(document: Path, kind: str) -> bytes:
    return render(document, digest=f"sha256:{'00' * 32}", kind=kind)


def ready(document: Path, *, digest: str, kind: str) -> bytes:
    """Return the preview of the one document that there is, drawn once by each child."""
    del digest
    return _drawn(document, kind)
