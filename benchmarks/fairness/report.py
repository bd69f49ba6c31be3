"""The tables, as Markdown: the same text on the terminal and in docs/fairness.md."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fairness.beside import FLOOD, JOB_MS, LIMIT, THREADS, THROTTLED, THROTTLED_MS, Outcome
from benchmarks.fairness.bounds import Row
from benchmarks.fairness.cost import Cost

PAGE = Path(__file__).parents[2] / "docs" / "fairness.md"
BEGIN, END = "<!-- made by: make fairness FULL=1 -->", "<!-- end of what it made -->"
#: The dearest shape beside the cheapest, CPU of Redis for each message.
CPU_RATIO = 1.4


def bounds_table(rows: Sequence[Row]) -> str:
    """Return the table of bounds."""
    return _table(
        ("what", "measured", "bound", ""),
        [
            (
                row.what,
                f"{row.value:.4g} {row.unit}".strip(),
                _bound(row),
                f"{'' if row.holds else '**MISSED** '}{row.note}".strip(),
            )
            for row in rows
        ],
    )


def _bound(row: Row) -> str:
    if row.bound is None:
        return "none"
    return f"{'≥' if row.at_least else '≤'} {row.bound:g} {row.unit}".strip()


def beside_table(outcomes: Sequence[Outcome]) -> str:
    """Return the table beside stock Dramatiq."""
    head = (
        f"{THROTTLED} jobs of {THROTTLED_MS} ms, limit {LIMIT}", "rendered", "in", "retries burnt",
        "dead by throttling", "left", "B's wait, median / max", f"B's wait behind {FLOOD:,}",
    )  # fmt: skip
    return _table(head, [outcome.row for outcome in outcomes])


def cost_table(costs: Sequence[Cost]) -> str:
    """Return the table of costs."""
    head = ("", "waiting", "commands: fetch + ack", "commands: publish", "CPU of Redis", "ratio")
    least = min(cost.total_us for cost in costs)
    return _table(
        head,
        [
            (
                cost.shape.name, f"{cost.shape.waiting:,}", f"{cost.calls:.2f}", f"{cost.publish_calls:.2f}",
                f"{cost.total_us:.0f} µs", f"{cost.total_us / least:.2f}",
            )
            for cost in costs
        ],
    )  # fmt: skip


def cost_holds(costs: Sequence[Cost]) -> bool:
    """Tell whether commands are equal and CPU is within its ratio."""
    totals, calls = [c.total_us for c in costs], {(c.calls, c.publish_calls) for c in costs}
    return len(calls) == 1 and max(totals) <= CPU_RATIO * min(totals)


def conditions(load: Sequence[float]) -> str:
    """Return a sentence about the machine and what else it did."""
    loads = ", ".join(f"{one:.1f}" for one in load)
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {THREADS} worker threads, jobs of {JOB_MS} ms where "
        "nothing else is said; the machine's load average before, between and after the parts: "
        f"{loads}."
    )


def write(text: str) -> None:
    """Put the text between the marks of docs/fairness.md."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
