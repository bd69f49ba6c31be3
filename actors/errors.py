"""What can go wrong with a render, in the three classes that decide what an attempt costs.

RenderError
|-- DocumentError             this document, this time: the attempt is spent
|   |-- RenderTimeout         took longer than ONCOMMIT_RENDER_TIMEOUT_SECONDS
|   |-- RenderMemory          asked for more than ONCOMMIT_RENDER_MEMORY_MB
|   |-- RenderOutputTooLarge  answered more than ONCOMMIT_RENDER_OUTPUT_BYTES
|   |-- RenderForked          started processes of its own
|   `-- RenderCrashed         the child ended without an answer; says by which signal or exit code
|-- PermanentError            no other attempt can go better: dead at once
|   `-- UnsupportedDocument
|-- InfrastructureError       not the document's fault: released, spends nothing (ten times)
|   |-- RendererUnavailable   a child could not be started
|   |-- DocumentMissing       the store does not have the document (yet, or here)
|   `-- ArtifactNotStored     the store refused the preview: disk full, read-only
`-- RenderStopped             told to stop: cancelled, shut down, or the claim was lost
"""

import signal
from enum import StrEnum


class RenderError(Exception):
    """Root. `error_class` is what events and the job's row call it; by default the type's name."""

    def __init__(self, text: str, *, error_class: str | None = None) -> None:
        super().__init__(text)
        self.error_class = error_class or type(self).__name__


class DocumentError(RenderError):
    """This document failed this time; the attempt is spent."""


class RenderTimeout(DocumentError):
    """The render took longer than it may."""


class RenderMemory(DocumentError):
    """The render asked for more memory than it may have."""


class RenderOutputTooLarge(DocumentError):
    """The preview is larger than it may be."""


class RenderForked(DocumentError):
    """The render started processes, which nothing it does calls for."""


class RenderCrashed(DocumentError):
    """The child ended without an answer; `exit_code` is negative for a signal, as in `subprocess`."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"the renderer ended without an answer: {_reason(exit_code)}")
        self.exit_code = exit_code


class PermanentError(RenderError):
    """No other attempt can go better: the job is dead at once."""


class UnsupportedDocument(PermanentError):
    """There is nothing in this document that could be drawn."""


class InfrastructureError(RenderError):
    """Not the document's fault: the claim is released."""


class RendererUnavailable(InfrastructureError):
    """A renderer child could not be started, or did not come up in time."""


class DocumentMissing(InfrastructureError):
    """The store does not have the document: not mounted, or not copied yet."""


class ArtifactNotStored(InfrastructureError):
    """The store refused the preview: disk full, read-only, gone."""


class Stop(StrEnum):
    """Why a running render is told to stop."""

    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    LOST = "lost"  # the database no longer names this worker: nothing it writes would take


class RenderStopped(RenderError):
    """The render was told to stop, from another thread."""

    def __init__(self, why: Stop) -> None:
        super().__init__(why.value, error_class=_STOP_CLASSES[why])
        self.why = why


_STOP_CLASSES = {Stop.CANCELLED: "Cancelled", Stop.SHUTDOWN: "Shutdown", Stop.LOST: "ClaimLost"}


def _reason(exit_code: int | None) -> str:
    if exit_code is None:
        return "it closed its pipe"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"signal {-exit_code}"


def metric_label(error_class: str) -> str:
    """Return `error_class` if it is one of this module's, else `other`: a label's values are a closed set."""
    return error_class if error_class in _LABELS else "other"


def _names(root: type[RenderError]) -> set[str]:
    return {root.__name__}.union(*(_names(kind) for kind in root.__subclasses__()))


_LABELS = frozenset(_names(RenderError) | set(_STOP_CLASSES.values()))
