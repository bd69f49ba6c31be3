"""What came of it: a table of medians beside the bounds, on the terminal and in docs/bounds.md."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.bounds.bounds import BOUNDS, Bound

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "bounds.md"
HEAD = ("what", "bound", "median", "each run", "verdict")
DISTRIBUTIONS = ("dramatiq", "psycopg", "redis")
INTRODUCTION = """\
# Bounds

Every number that is promised, measured on real processes with the settings of production. `make bounds` made
this page: it runs each measure several times on fresh databases and exits 1 when a bound is missed: by the
median, or where it says "each time" by the slowest run.
`make bounds ONLY=takeover` measures one and writes nothing; `benchmarks/bounds/bounds.py` has the bounds.

"""


@dataclass(slots=True)
class Found:
    """What the runs of some measures gave.

    Attributes:
        values: by (measure, bound's key), one for each run that got so far.
        failures: by measure, one sentence for each run that did not end.
        times: how many runs of each measure there should be.

    """

    times: int
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict[tuple[str, str], list[float]])
    failures: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, measure: str, measured: Mapping[str, float]) -> None:
        """Keep what one run measured.

        Raises:
            ValueError: it did not measure exactly the bounds of its own.

        """
        if measured.keys() != (keys := {bound.key for bound in BOUNDS[measure]}):
            raise ValueError(f"{measure} measured {sorted(measured)}, not {sorted(keys)}")
        for key, value in measured.items():
            self.values.setdefault((measure, key), []).append(value)

    def fail(self, measure: str, why: str) -> None:
        """Keep why one run did not end."""
        self.failures.setdefault(measure, []).append(why)

    def verdict(self, measure: str, bound: Bound) -> str:
        """Return `held`, `MISSED`, or how many runs failed: a run without a value is never left out."""
        values = self.values.get((measure, bound.key), [])
        if len(values) < self.times:
            return f"FAILED {self.times - len(values)} of {self.times}"
        return "held" if bound.holds(values) else "MISSED"

    def rows(self, measures: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield the table's rows."""
        for measure in measures:
            for bound in BOUNDS[measure]:
                values = self.values.get((measure, bound.key), [])
                median = f"{statistics.median(values):.3g} {bound.unit}".strip() if values else "none"
                each = ", ".join(f"{value:.3g}" for value in values)
                yield bound.what, bound.limit, median, each, self.verdict(measure, bound)

    def holds(self, measures: Sequence[str]) -> bool:
        """Tell whether every bound of these measures holds."""
        return all(
            self.verdict(measure, bound) == "held" for measure in measures for bound in BOUNDS[measure]
        )


def markdown(found: Found, measures: Sequence[str], conditions: str, left: Sequence[str] = ()) -> str:
    """Return the table and what it was measured on; `left` are the measures that were not made yet."""
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *found.rows(measures))]
    if left:
        conditions += f"\n\nStopped before these were measured: {', '.join(left)}."
    failed = [f"- {name}: {why}" for name in measures for why in found.failures.get(name, [])]
    return "\n".join([*lines, "", *failed, *([""] if failed else []), conditions, ""])


def conditions(of: str, server: str, valkey: str, minutes: float, load: Sequence[float]) -> str:
    """Return what was measured, and on what: commit (`of`), versions, machine, load."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"Commit {of}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {minutes:.0f} minutes. "
        f"{server}, {valkey}, "
        f"Python {platform.python_version()}, {versions}; {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {memory:.0f} GB; load average {min(load):.1f} to {max(load):.1f}, "
        "of which these measurements are a part."
    )


def commit() -> str:
    """Return what git calls this tree: its commit, and whether it was changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def write(text: str) -> None:
    """Make docs/bounds.md of the table."""
    PAGE.write_text(INTRODUCTION + text, encoding="utf-8")
