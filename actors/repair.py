"""`python -m actors.repair`: make lost previews again, for `oncommit artifacts verify --repair`.

One JSON object a line: `{"document", "kind", "artifact"}` on standard input is answered, in order, by
`{"outcome", "error_class"}` on standard output. The renderer is deterministic, so the same bytes come
out, and nothing but those is stored: no job, event or dispatch changes. Ends when its input does.
"""

import hashlib
import sys
from typing import Any, BinaryIO

import orjson

from actors.child import Renderers
from actors.errors import RenderError
from actors.renderer import Limits
from runtime.blobs import BlobStore
from runtime.settings import Settings, settings


def remake(store: BlobStore, renderers: Renderers, wanted: dict[str, str], timeout: float) -> dict[str, str]:
    """Render one document again and store the preview if it is the very one that is missing.

    Returns `outcome`: repaired | differs (another version of the renderer made it) | document_missing |
    failed (`error_class` says why).
    """
    document = wanted["document"]
    if not store.verify(document):
        return {"outcome": "document_missing"}
    request: dict[str, Any] = {
        "document": str(store.path(document)),
        "digest": document,
        "kind": wanted["kind"],
        "attempt": 1,
        "simulate": {},
    }
    try:
        child = renderers.take()
        try:
            preview = child.render(request, timeout)
        finally:
            renderers.give(child)
        if f"sha256:{hashlib.sha256(preview).hexdigest()}" != wanted["artifact"]:
            return {"outcome": "differs"}
        # Not put_bytes: a damaged blob of the right size would be left as it is.
        with store.writer() as writer:
            writer.write(preview)
            writer.commit()
    except RenderError as error:
        return {"outcome": "failed", "error_class": error.error_class}
    except OSError as error:
        return {"outcome": "failed", "error_class": type(error).__name__}
    return {"outcome": "repaired"}


def serve(requests: BinaryIO, answers: BinaryIO, given: Settings) -> None:
    """Answer every request until there are no more."""
    store = BlobStore(given.blobs)
    renderers = Renderers(Limits(given.render_memory_mb << 20, given.render_output_bytes))
    try:
        for line in requests:
            outcome = remake(store, renderers, orjson.loads(line), given.render_timeout_seconds)
            answers.write(orjson.dumps(outcome) + b"\n")
            answers.flush()
    finally:
        renderers.close()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, settings())
