"""Claims: what an act says will be so, beside what was measured. An act held when all its claims did."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: it held when what was measured equals what was expected."""

    text: str
    expected: object
    measured: object

    @property
    def held(self) -> bool:
        """Whether it was so."""
        return self.measured == self.expected


@dataclass(slots=True)
class Act:
    """One act of the demonstration.

    Attributes:
        name: a sentence.
        claims: what was to be shown.
        facts: what was measured besides, without an expectation.
        seconds: how long it took.

    """

    name: str
    claims: list[Claim] = field(default_factory=list[Claim])
    facts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    seconds: float = 0.0

    def claim(self, text: str, *, expected: object, measured: object) -> None:
        """Put a claim beside its measurement."""
        self.claims.append(Claim(text, expected, measured))

    def fact(self, text: str, value: str) -> None:
        """Tell a measurement that is not judged, such as a time."""
        self.facts.append((text, value))

    @property
    def held(self) -> bool:
        """Whether everything claimed was so. An act that claims nothing shows nothing."""
        return bool(self.claims) and all(claim.held for claim in self.claims)

    @contextmanager
    def clock(self) -> Generator[None]:
        """Time the act."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds = time.monotonic() - started


def table(acts: Sequence[Act], title: str = "oncommit demo") -> Table:
    """Return the acts for humans."""
    found = Table("", "expected", "measured", "", title=title)
    for n, act in enumerate(acts, start=1):
        found.add_section()
        verdict = Text("held", "bold green") if act.held else Text("DID NOT HOLD", "bold red")
        found.add_row(Text(f"{n}. {act.name}", "bold"), "", Text(f"{act.seconds:.1f} s"), verdict)
        for claim in act.claims:
            mark = Text("yes", "green") if claim.held else Text("NO", "bold red")
            found.add_row(
                Text(f"   {claim.text}"), Text(str(claim.expected)), Text(str(claim.measured)), mark
            )
        for text, value in act.facts:
            found.add_row(Text(f"   {text}", "dim"), "", Text(value, "dim"), "")
    return found


def facts(acts: Sequence[Act]) -> dict[str, Any]:
    """Return the acts for scripts: one JSON object."""
    return {
        "held": bool(acts) and all(act.held for act in acts),
        "acts": [
            {
                "name": act.name,
                "held": act.held,
                "seconds": round(act.seconds, 3),
                "claims": [
                    {"claim": c.text, "expected": c.expected, "measured": c.measured, "held": c.held}
                    for c in act.claims
                ],
                "facts": dict(act.facts),
            }
            for act in acts
        ],
    }
