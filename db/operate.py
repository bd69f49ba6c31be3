"""Teams and tokens: the operator's statements. Each is an audited function; `who` is kept with it."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg

from db.errors import Refused, translated
from db.pool import with_options

TEAM = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")  # the CHECK of teams.id
SCOPES = ("submit", "read", "operate")  # the CHECK of tokens.scopes
APPLICATION = "oncommit operate"


class UnknownTeam(Refused):
    """There is no team of that name."""


class BadTeamName(Refused):
    """A team's name is 1 to 63 of a-z, 0-9 and dashes, and does not start with a dash."""


CREATE_TEAM = "SELECT create_team(%s, %s)"


def create_team(dsn: str, team: str, *, who: str) -> bool:
    """Make a team; tell whether it was made, False when it was there.

    Raises:
        BadTeamName: see there.
        DatabaseError: see `db.errors`.

    """
    if TEAM.fullmatch(team) is None:
        raise BadTeamName(team)
    with translated(), psycopg.connect(with_options(dsn, APPLICATION)) as conn:
        row = conn.execute(CREATE_TEAM, [team, who]).fetchone()
    return row is not None and bool(row[0])


def new_token() -> str:
    """Return a fresh token: `oc_` and 43 URL-safe characters, 256 random bits."""
    return f"oc_{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> bytes:
    """Return what is stored of a token: SHA-256 of the whole text.

    No salt and no stretching: a token is 256 random bits, nothing that a dictionary could hold.
    """
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class TokenOrder:
    """A token to be stored.

    Attributes:
        team: who it speaks for.
        scopes: any of submit, read, operate; at least one.
        label: for humans, at most 100 characters.
        expires_at: aware time from which it is refused; None: never.

    """

    team: str
    scopes: Sequence[str] = ("submit", "read")
    label: str = ""
    expires_at: datetime | None = None


CREATE_TOKEN = "SELECT create_token(%s, %s, %s, %s, %s, %s)"  # noqa: S105 -- SQL


def store_token(dsn: str, token: str, order: TokenOrder, *, who: str) -> UUID | None:
    """Store the hash of `token`; return its id, or None when this very token is stored already.

    Raises:
        UnknownTeam: there is no such team.
        DatabaseError: see `db.errors`.

    """
    values = [order.team, token_hash(token), list(order.scopes), order.label, order.expires_at, who]
    with translated(), psycopg.connect(with_options(dsn, APPLICATION)) as conn:
        try:
            row = conn.execute(CREATE_TOKEN, values).fetchone()
        except psycopg.errors.UniqueViolation:
            conn.rollback()
            return None
        except psycopg.errors.ForeignKeyViolation as error:
            raise UnknownTeam(order.team) from error
    return None if row is None else row[0]
