"""`oncommit teams ...`."""

import json

import typer

from db import operate
from db.operate import BadTeamName
from ops.commands.who import AsJson, Who
from runtime.settings import settings

app = typer.Typer(no_args_is_help=True, help="Teams.")


@app.command()
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
