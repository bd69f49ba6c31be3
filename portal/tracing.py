"""Traces: each request joins the caller's W3C trace, or begins one, and the job carries it on.

https://www.w3.org/TR/trace-context/ version 00. An unusable header begins a new trace, as the
recommendation says; it is never an error.
"""

import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = "01"


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace that a request belongs to, and this request's own span in it."""

    trace_id: str
    span_id: str
    flags: str

    @property
    def traceparent(self) -> str:
        """The header that makes what follows a child of this request."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def named(traceparent: str) -> Trace:
    """Return the span that a header of our own names."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return Trace(trace_id, span_id, flags)


def join(traceparent: str | None) -> Trace:
    """Return a new span in the trace of the header, or in a new trace."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None or set(found[1]) == {"0"} or set(found[2]) == {"0"}:
        return Trace(secrets.token_hex(16), secrets.token_hex(8), SAMPLED)
    return Trace(found[1], secrets.token_hex(8), found[3])
