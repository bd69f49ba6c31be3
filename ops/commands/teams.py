"""`oncommit teams ...`."""

import json
from typing import Annotated, Any

import typer

from db import operate, oversight
from db.operate import BadTeamName, UnknownTeam
from ops import show
from ops.commands.acts import MaybeReason, operator_connection
from ops.commands.who import AsJson, Who
from ops.exit_codes import EPILOG
from runtime.settings import settings

app = typer.Typer(no_args_is_help=True, help="Teams and their limits.", epilog=EPILOG)

COLUMNS = ("id", "max_running", "weight", "rate_per_second", "burst", "max_backlog", "paused", "paused_by")
NO_LIMIT = "none"
# The CHECKs of `control` and `teams`.
RUNNING_MOST, RATE_LEAST, RATE_MOST = 100_000, 1e-6, 1e6


def parse_running(text: str) -> int | str:
    """Return a number of renders, or `none`.

    Raises:
        typer.BadParameter: it is neither.

    """
    if text == NO_LIMIT:
        return text
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= RUNNING_MOST:
        raise typer.BadParameter(f"1 to {RUNNING_MOST}, or {NO_LIMIT}")
    return int(text)


def parse_rate(text: str) -> float | str:
    """Return starts a second, or `none`.

    Raises:
        typer.BadParameter: it is neither.

    """
    if text == NO_LIMIT:
        return text
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not RATE_LEAST <= rate <= RATE_MOST:
        raise typer.BadParameter(f"{RATE_LEAST:f} to {RATE_MOST:.0f} starts a second, or {NO_LIMIT}")
    return rate


Running = Annotated[
    Any, typer.Option(parser=parse_running, metavar="N|none", help="renders at one time", show_default=False)
]
Rate = Annotated[
    Any, typer.Option(parser=parse_rate, metavar="N|none", help="starts a second", show_default=False)
]
Weight = Annotated[int | None, typer.Option(min=1, max=100, help="turns in a row: its share among teams")]
Burst = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="starts at once after idling")]
Backlog = Annotated[
    int | None,
    typer.Option(min=0, max=2_000_000_000, help="unfinished jobs above which new ones are answered 429"),
]


@app.command(epilog=EPILOG)
def create(team: str, who: Who, as_json: AsJson = False) -> None:
    """Make a team, with default limits. Harmless when it exists.

    Example: oncommit teams create red
    """
    try:
        made = operate.create_team(settings().database_url.get_secret_value(), team, who=who)
    except BadTeamName as error:
        raise typer.BadParameter(str(BadTeamName.__doc__), param_hint="TEAM") from error
    if as_json:
        typer.echo(json.dumps({"team": team, "created": made}))
    else:
        typer.echo(f"team {team} {'made' if made else 'was there already'}")


@app.command("list", epilog=EPILOG)
def list_(*, as_json: AsJson = False) -> None:
    """List teams with their limits; no limit is shown as `-`, and null in JSON.

    Example: oncommit teams list
    """
    with operator_connection() as conn:
        rows = oversight.teams(conn)
    show.tell_rows(rows, COLUMNS, as_json=as_json, none="no team yet: oncommit teams create NAME")


@app.command("set", epilog=EPILOG)
def set_(
    team: str,
    *,
    max_running: Running = None,
    weight: Weight = None,
    rate: Rate = None,
    burst: Burst = None,
    max_backlog: Backlog = None,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Change a team's limits; what is not named stays. In force in every worker within 2 s.

    Example: oncommit teams set red --max-running 4 --weight 2

    Example: oncommit teams set red --rate none --reason "the import is over"
    """
    given = {"max_running": max_running, "weight": weight, "rate_per_second": rate, "burst": burst}
    changes = {
        name: None if value == NO_LIMIT else value for name, value in given.items() if value is not None
    }
    if not changes and max_backlog is None:
        raise typer.BadParameter(
            "name at least one limit: --max-running --weight --rate --burst --max-backlog"
        )
    with operator_connection() as conn:
        try:
            operate.set_limits(conn, team, changes, max_backlog=max_backlog, who=who, reason=reason or "")
        except UnknownTeam:
            raise typer.BadParameter(f"no team {team!r}", param_hint="TEAM") from None
        row = next(row for row in oversight.teams(conn) if row["id"] == team)
    if as_json:
        show.tell_json(row)
    else:
        show.tell_rows([row], COLUMNS, as_json=False)
