"""What the operator's commands print: tables on a terminal, tab-separated lines in a pipe, JSON on demand.

Whatever comes from others (reasons, labels, ids) is escaped: it can neither colour nor forge a line.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400  # seconds


#: Columns that other commands take as arguments.
IDS = frozenset({"id", "job"})


def printable(text: str) -> str:
    """Return `text` with control and other unprintable characters as escapes: one line, no ANSI codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(value: Any) -> str:
    """Return a value as a human reads it in a table."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:g}" if value.is_integer() else f"{value:.1f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list):
        return ", ".join(map(cell, cast("list[object]", value)))
    return printable(json_text(cast("object", value)) if isinstance(value, dict) else str(value))


def span(seconds: float | None) -> str:
    """Return a time span with its unit, such as `2.5 s`, `3 min`, `4.2 h`, `12 d`."""
    if seconds is None:
        return "-"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.1f} s"


def size(number: int | None) -> str:
    """Return a number of bytes with its unit."""
    if number is None:
        return "-"
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:  # noqa: PLR2004 -- what the prefixes mean
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def json_text(value: object) -> str:
    """Return `value` as one line of JSON; times carry their offset."""
    return orjson.dumps(value, default=str).decode()


def tell_json(value: object) -> None:
    """Print one line of JSON on standard output."""
    typer.echo(json_text(value))


def tell_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, none: str = "none"
) -> None:
    """Print rows: as one JSON array of all their fields, or `columns` of them for a human.

    `none` is said on standard error when there are no rows.
    """
    if as_json:
        tell_json([dict(row) for row in rows])
        return
    if not rows:
        typer.echo(none, err=True)
        return
    console = Console()
    cells = [[cell(row[column]) for column in columns] for row in rows]
    if not console.is_terminal:
        # Cut to a pipe's made-up width a table would lose words: there each row is one line.
        for line in ([*columns], *cells):
            typer.echo("\t".join(line))
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        # An id is there to be copied: it stays whole on its line. What does not fit otherwise goes on below.
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column in IDS)
    for line in cells:
        table.add_row(*(Text(text) for text in line))  # Text, not markup: a label may be [red]
    console.print(table)


def tell_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values of one thing for a human."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {cell(value)}")


def progress(*, quiet: bool) -> Progress:
    """Return a progress bar on standard error; it shows nothing when `quiet` or without a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def note(text: str) -> None:
    """Say one thing on standard error, so that standard output stays what a script reads."""
    typer.echo(printable(text), err=True)
    sys.stderr.flush()  # a killed command has said it
