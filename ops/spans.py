"""How operators write times: a span (`90s`, `15m`, `2h`, `30d`), an instant with its offset, a rate."""

import re
from datetime import datetime, timedelta

import typer

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # seconds
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_RATE = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)(?:/([smh]))?")
LONGEST = timedelta(days=36_500)  # beyond it dates end


def parse_span(text: str) -> timedelta:
    """Return the span that `text` says.

    Raises:
        typer.BadParameter: it says none.

    """
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time span: write 90s, 15m, 2h, 30d or 4w")
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > LONGEST.total_seconds():
        raise typer.BadParameter("at most 100 years")
    return timedelta(seconds=seconds)


def parse_since(text: str) -> datetime | timedelta:
    """Return an instant, or how long ago: that is counted by PostgreSQL's clock, not by this machine's.

    Raises:
        typer.BadParameter: it is neither, or an instant without an offset, which would be a guess.

    """
    if _SPAN.fullmatch(text.strip().lower()):
        return parse_span(text)
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write 2h, 30d or a time as 2026-03-29T02:30:00Z") from None
    if instant.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no offset: write {text.strip()}Z for UTC, or +02:00")
    return instant


def parse_rate(text: str) -> float:
    """Return `50`, `50/s` or `600/m` in jobs a second.

    Raises:
        typer.BadParameter: it is no rate, or 0.

    """
    found = _RATE.fullmatch(text.strip().lower())
    rate = float(found[1]) / UNITS[found[2] or "s"] if found else 0.0
    if rate <= 0:
        raise typer.BadParameter(f"{text!r} is no rate: write 50/s, 600/m or 0.5/s")
    return rate
