"""When renders may have ended early: the times of faults that interrupt, and a while after each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .settings import LOST_SECONDS

#: After the last such fault is over: its worker is missed (LOST_SECONDS), by a steward that looks each 0.8 s
#: and may have begun to count anew; and a worker that stops has said its last word (1 s of grace, 5 s for a
#: connection).
AFTER_SECONDS = LOST_SECONDS + 8.0
#: Neither stewards nor workers can write while these are out of order: such time does not count.
HINDERED = frozenset({"postgres", "workers"})
Span = tuple[float, float]


def interrupted(entries: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return the spans (from, to; seconds since 1970) in which a render's early end is explained."""
    spans = list(faults(entries))
    hindered = _joined(span for entry, span in spans if HINDERED & set(entry.get("touches", ())))
    return _joined(
        (begun, _later(over, AFTER_SECONDS, hindered))
        for entry, (begun, over) in spans
        if entry.get("interrupts")
    )


def within(at: float, spans: Sequence[Span]) -> bool:
    """Tell whether a moment is in one of the spans."""
    return any(begun <= at <= over for begun, over in spans)


def faults(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Span]]:
    """Yield each injection with its span: one that is never healed lasts until the end."""
    for n, entry in enumerate(entries):
        if entry["what"] == "inject":
            heals = (e["at"] for e in entries[n:] if e["what"] == "heal" and e["fault"] == entry["fault"])
            yield entry, (entry["at"], next(heals, float("inf")))


def _joined(spans: Iterator[Span]) -> list[Span]:
    found: list[Span] = []
    for begun, over in sorted(spans):
        if found and begun <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], over)
        else:
            found.append((begun, over))
    return found


def _later(at: float, seconds: float, hindered: Sequence[Span]) -> float:
    """Return when so many seconds will have passed since `at`, those that were hindered left out."""
    end = at + seconds
    for begun, over in hindered:
        if over > at and begun < end:
            end += over - max(begun, at)
    return end
