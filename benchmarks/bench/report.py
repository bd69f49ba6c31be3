"""What came of it: a table of medians and ratios, for the terminal and for benchmarks/RESULTS.md."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.bench.contest import Floor, Outcome, spread

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "RESULTS.md"
FIGURES_HEAD = ("contestant", "median", "unit", "least .. most")
FLOORS_HEAD = ("what", "against", "ratio", "least .. most", "floor", "verdict")
DISTRIBUTIONS = (
    "dramatiq", "psycopg", "redis", "fastapi", "uvicorn",
    "procrastinate", "dramatiq-postgres", "faststream-outbox",
)  # fmt: skip
INTRODUCTION = """\
# Results

oncommit beside what its users would pick instead, and beside the limit. `make bench` made this page and the
plots: contestants are set up once each, on real servers with the settings of production (fsync and
synchronous_commit on, Valkey with an append-only file), and take turns round by round. A ratio is ours
divided by the other's within one round; its median counts, since machines drift and two that take turns drift
together. `make bench ONLY=name` measures one and writes nothing. How each contestant is set up is said below
each table, which is the docstring of its module in `benchmarks/bench/measures/`.
"""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was measured, and on what; `notes`: by measure, how its contestants are set up."""

    servers: Sequence[str]
    minutes: float
    load: Sequence[float]
    size: str
    notes: Mapping[str, str] = field(default_factory=dict)


def figures(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield a row for each contestant and figure."""
    for name in [*outcome.values, *(n for n in outcome.failures if n not in outcome.values)]:
        for figure in outcome.measure.figures:
            values = outcome.of(name, figure.key)
            what = name if len(outcome.measure.figures) == 1 else f"{name}, {figure.key}"
            if values:
                middle, least, most = spread(values)
                yield what, number(middle), figure.unit, f"{number(least)} .. {number(most)}"
            else:
                yield what, "FAILED", figure.unit, ""


def floors(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield a row for each floor."""
    for floor in outcome.measure.floors:
        ratios, unit = outcome.ratios(floor), _unit(outcome, floor)
        what = floor.ours if len(outcome.measure.figures) == 1 else f"{floor.ours}, {floor.figure}"
        against = "itself" if floor.absolute else floor.other
        sign = "≤" if outcome.measure.figure(floor.figure).less else "≥"
        asked = "shown" if floor.bound is None else f"{sign} {floor.bound:g} {unit}"
        if ratios:
            middle, least, most = spread(ratios)
            told = (f"{number(middle)} {unit}", f"{number(least)} .. {number(most)}")
        else:
            told = ("none", "")
        yield what, against, *told, asked, outcome.verdict(floor)


def _unit(outcome: Outcome, floor: Floor) -> str:
    return outcome.measure.figure(floor.figure).unit if floor.absolute else "x"


def markdown(outcomes: Sequence[Outcome], conditions: Conditions, plots: Mapping[str, str]) -> str:
    """Return the page's tables; `plots`: file names by measure."""
    lines = [conditions_text(conditions), ""]
    for outcome in outcomes:
        measure = outcome.measure
        lines += [f"## {measure.title}", "", *_table(FIGURES_HEAD, figures(outcome)), ""]
        if measure.floors:
            lines += [*_table(FLOORS_HEAD, floors(outcome)), ""]
        lines += [f"- {name} FAILED: {why}" for name, why in outcome.failures.items()]
        if outcome.failures:
            lines.append("")
        if note := conditions.notes.get(measure.name):
            lines += [note, ""]
        if plot := plots.get(measure.name):
            lines += [f"![{measure.title}]({plot})", ""]
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def number(value: float) -> str:
    """Return a value with as many digits as are worth reading."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def conditions_text(found: Conditions) -> str:
    """Return what was measured, and on what: commit, versions, machine, load."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS if _installed(name)
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"Commit {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {found.minutes:.0f} minutes, "
        f"{found.size}. "
        f"{', '.join(found.servers)}, Python {platform.python_version()}, {versions}; "
        f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GB; load average "
        f"{found.load[0]:.1f} when it began, then up to {max(found.load):.1f}, of which these measurements "
        "are a part."
    )


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def processor() -> str:
    """Return the model of the processor, or the machine's kind where it is not told."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """Return the commit that was measured."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def write(text: str) -> None:
    """Make benchmarks/RESULTS.md of the tables."""
    PAGE.write_text(f"{INTRODUCTION}\n{text}", encoding="utf-8")


def terminal(outcome: Outcome) -> str:
    """Return a contest's tables for a terminal."""
    lines = [outcome.measure.title]
    for head, rows in ((FIGURES_HEAD, list(figures(outcome))), (FLOORS_HEAD, list(floors(outcome)))):
        if not rows:
            continue
        widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(f"  {line}" if n else line for n, line in enumerate(lines)) + "\n"


def median_of(outcome: Outcome, contestant: str, figure: str) -> float | None:
    """Return a contestant's median, None when it has none."""
    values = outcome.of(contestant, figure)
    return statistics.median(values) if values else None
