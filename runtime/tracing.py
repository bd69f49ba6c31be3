"""Traces: one from the request through commit, publish, claim and render to the end, by `traceparent`.

The job's row and its messages carry the W3C header (https://www.w3.org/TR/trace-context/), whether
anybody records spans or not. Recording needs the extra `oncommit[tracing]` and ONCOMMIT_TRACES; without
it everything here costs one look at a variable.
"""

import re
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from runtime.settings import SettingsError

Attribute = str | int | float | bool
_IN_BODY = re.compile(rb'"traceparent":"(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})"')


class Here(Protocol):
    """An open span. `traceparent` makes what follows its child; None when nothing is recorded."""

    @property
    def traceparent(self) -> str | None:
        """The header that names this span."""

    def tell(self, name: str | None = None, **attributes: Attribute) -> None:
        """Give it another name, and add attributes."""


class Recorder(Protocol):
    """What records; see runtime/trace_recorder.py."""

    def span(
        self, name: str, traceparent: str | None, attributes: dict[str, Attribute]
    ) -> AbstractContextManager[Here]:
        """Open a span for the block."""
        ...

    def past(self, name: str, traceparent: str, begun_ns: int, attributes: dict[str, Attribute]) -> None:
        """Record a span that ends now."""

    def here(self) -> str:
        """Return the header that names the open span."""
        ...

    def shutdown(self) -> None:
        """Send what was not sent yet."""


class _Nowhere:
    traceparent = None

    def tell(self, name: str | None = None, **attributes: Attribute) -> None:
        """Record nothing."""


_NOWHERE = _Nowhere()
_recorder: Recorder | None = None


def configure(process: str, traces: str) -> None:
    """Begin to record, as the setting `traces` says: `off`, `otlp`, or `file:` and a path.

    Raises:
        SettingsError: the extra is not installed.

    """
    global _recorder  # noqa: PLW0603 -- like logs: one for the process
    if traces == "off":
        return
    try:
        from runtime.trace_recorder import OpenTelemetry  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise SettingsError("ONCOMMIT_TRACES needs the extra: pip install 'oncommit[tracing]'") from error
    _recorder = OpenTelemetry(process, traces)


def shutdown() -> None:
    """Send what was not sent yet, and record no more."""
    global _recorder  # noqa: PLW0603 -- see above
    if _recorder is not None:
        _recorder.shutdown()
        _recorder = None


@contextmanager
def span(name: str, traceparent: str | None = None, **attributes: Attribute) -> Generator[Here]:
    """Record the block: as a child of `traceparent`, or else of the span around it.

    An exception is recorded by its type only: its text may quote a document.
    """
    if _recorder is None:
        yield _NOWHERE
        return
    with _recorder.span(name, traceparent, attributes) as here:
        yield here


def here() -> str | None:
    """Return what names the open span, for what will end in another thread; None when nothing is recorded."""
    return None if _recorder is None else _recorder.here()


def past(name: str, traceparent: str | None, begun_ns: int, **attributes: Attribute) -> None:
    """Record what began at `begun_ns` of the wall clock and ends now, as a child of `traceparent`."""
    if _recorder is not None and traceparent is not None:
        _recorder.past(name, traceparent, begun_ns, attributes)


def published(bodies: list[bytes], begun_ns: int) -> None:
    """Record that these messages were published, between `begun_ns` of the wall clock and now."""
    if _recorder is None:
        return
    for body in bodies:
        if (found := _IN_BODY.search(body)) is not None:
            _recorder.past("publish", found[1].decode(), begun_ns, {"messages": len(bodies)})


def now_ns() -> int:
    """Return the wall clock's time as `published` wants it."""
    return time.time_ns()
