"""`oncommit tokens ...`."""

import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from db import operate, oversight
from db.operate import TokenOrder, UnknownTeam
from ops import show
from ops.commands.acts import MaybeReason, Team, operator_connection
from ops.commands.who import AsJson, Who
from ops.exit_codes import EPILOG, TROUBLE
from runtime.settings import settings

app = typer.Typer(no_args_is_help=True, help="Tokens: how a team's clients show who they are.")

LABEL_CHARACTERS = 100  # the CHECK of tokens.label
DAYS_MOST = 3650


class Scope(StrEnum):
    """What a token allows."""

    submit = "submit"
    read = "read"
    operate = "operate"


@app.command(epilog=EPILOG)
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


@app.command("list", epilog=EPILOG)
def list_(
    *,
    team: Team = None,
    every: Annotated[bool, typer.Option("--all", help="also revoked and expired ones")] = False,
    as_json: AsJson = False,
) -> None:
    """List tokens by id; the tokens themselves are kept nowhere.

    Example: oncommit tokens list --team red
    """
    with operator_connection() as conn:
        rows = oversight.tokens(conn, team=team, every=every)
    columns = ("id", "team", "scopes", "label", "created_at", "expires_at", "revoked_at")
    show.tell_rows(rows, columns, as_json=as_json, none="no token in force" if not every else "no token")


@app.command(epilog=EPILOG)
def revoke(
    token: Annotated[UUID, typer.Argument(metavar="ID", help="as `tokens list` shows it")],
    *,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Revoke a token for good; portals refuse it within seconds.

    Example: oncommit tokens revoke 0b0c6f3a-3f0e-4a39-93a3-8d0c5f3f6a11 --reason "it was in a log"
    """
    with operator_connection() as conn:
        changed = operate.revoke(conn, token, who=who, reason=reason or "")
        known = changed or any(row["id"] == token for row in oversight.tokens(conn, team=None, every=True))
    if as_json:
        show.tell_json({"id": token, "outcome": "revoked" if changed else "already" if known else "unknown"})
    else:
        typer.echo(f"{token}: {'revoked' if changed else 'was revoked already' if known else 'is no token'}")
    if not known:
        raise typer.Exit(TROUBLE)
