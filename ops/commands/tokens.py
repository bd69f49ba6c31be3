"""`oncommit tokens ...`."""

import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from db import operate
from db.operate import TokenOrder, UnknownTeam
from ops.commands.who import AsJson, Who
from runtime.settings import settings

app = typer.Typer(no_args_is_help=True, help="Tokens: how a team's clients show who they are.")

LABEL_CHARACTERS = 100  # the CHECK of tokens.label
DAYS_MOST = 3650


class Scope(StrEnum):
    """What a token allows."""

    submit = "submit"
    read = "read"
    operate = "operate"


@app.command()
def create(
    *,
    team: Annotated[str, typer.Option(help="the team that it speaks for")],
    scope: Annotated[list[Scope] | None, typer.Option(help="repeatable; default: submit and read")] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=DAYS_MOST, help="default: never")] = None,
    label: Annotated[str, typer.Option(help="for humans, at most 100 characters")] = "",
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    Example: oncommit tokens create --team red --scope read --expires-days 30
    """
    if len(label) > LABEL_CHARACTERS:
        raise typer.BadParameter(f"at most {LABEL_CHARACTERS} characters", param_hint="--label")
    scopes = list(dict.fromkeys(s.value for s in scope or (Scope.submit, Scope.read)))
    expires_at = datetime.now(UTC) + timedelta(days=expires_days) if expires_days else None
    order = TokenOrder(team, scopes, label, expires_at)
    token = operate.new_token()
    try:
        token_id = operate.store_token(settings().database_url.get_secret_value(), token, order, who=who)
    except UnknownTeam as error:
        raise typer.BadParameter(
            f"no team {team!r}: oncommit teams create {team}", param_hint="--team"
        ) from error
    if as_json:
        expires = expires_at.isoformat() if expires_at else None
        told = {"id": str(token_id), "team": team, "token": token, "scopes": scopes, "expires_at": expires}
        typer.echo(json.dumps(told))
        return
    typer.echo(token)  # alone on standard output: TOKEN=$(oncommit tokens create ...)
    typer.echo(f"token {token_id} of team {team}; it is not shown again", err=True)
