"""The operator's statements: teams, tokens, limits, pauses. Each is an audited function that keeps `who`."""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.types.json import Jsonb

from db import probes
from db.errors import Refused, translated
from db.pool import with_options

TEAM = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")  # the CHECK of teams.id
APPLICATION = "oncommit operate"


class UnknownTeam(Refused):
    """There is no team of that name."""


class BadTeamName(Refused):
    """A team's name is 1 to 63 of a-z, 0-9 and dashes, does not start with a dash, is not oncommit-probe."""


class BadLimit(Refused):
    """A limit is out of its bounds; the text names them."""


CREATE_TEAM = "SELECT create_team(%s, %s)"


def create_team(dsn: str, team: str, *, who: str) -> bool:
    """Make a team; tell whether it was made, False when it was there.

    Raises:
        BadTeamName: see there.
        DatabaseError: see `db.errors`.

    """
    if TEAM.fullmatch(team) is None or team == probes.LANE:
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


SET_LANE = "SELECT set_lane(%s, %s, %s, %s)"
SET_BACKLOG = "SELECT set_backlog(%s, %s, %s, %s)"


def set_limits(
    conn: Connection[Any],
    team: str,
    changes: Mapping[str, Any],
    *,
    max_backlog: int | None,
    who: str,
    reason: str,
) -> None:
    """Change some of a team's limits, in force everywhere within 2 s, and its backlog quota.

    `changes` holds any of max_running, weight, rate_per_second, burst; None means no limit.

    Raises:
        UnknownTeam: there is no such team.
        BadLimit: see there; nothing was changed.
        DatabaseError: see `db.errors`.

    """
    with translated(), conn.transaction():
        try:
            if changes:
                conn.execute(SET_LANE, [team, Jsonb(dict(changes)), who, reason])
            if max_backlog is not None:
                conn.execute(SET_BACKLOG, [team, max_backlog, who, reason])
        except psycopg.errors.NoDataFound as error:
            raise UnknownTeam(team) from error
        except psycopg.errors.InvalidParameterValue as error:
            raise BadLimit(error.diag.message_primary or "out of bounds") from error


PAUSE = "SELECT pause_lane(%s, %s, %s, %s)"


def pause(conn: Connection[Any], lane: str, paused: bool, *, who: str, reason: str) -> bool:
    """Pause or resume a team, or everything (`*`); tell whether that changed anything.

    Raises:
        UnknownTeam: there is no such team.
        DatabaseError: see `db.errors`.

    """
    with translated(), conn.transaction():
        try:
            row = conn.execute(PAUSE, [lane, paused, who, reason]).fetchone()
        except psycopg.errors.NoDataFound as error:
            raise UnknownTeam(lane) from error
    return bool(row and row[0])


CANCEL = "SELECT cancel_as_operator(%s, %s, %s)"


def cancel(conn: Connection[Any], job: UUID, *, who: str, reason: str) -> str:
    """Cancel a job: `cancelled`, `asked` (its render is told to stop), `already`, `finished` or `unknown`."""
    with translated(), conn.transaction():
        row = conn.execute(CANCEL, [job, who, reason]).fetchone()
    return str(row[0]) if row else "unknown"


REPLAY_QUARANTINED = "SELECT replay_quarantined(%s, %s, %s)"


def replay_quarantined(conn: Connection[Any], number: int, *, who: str, reason: str) -> str:
    """Put a quarantined message that belongs to no job back into the outbox.

    Returns `replayed`, `already`, `unknown`, `of_a_job`, `cut`, `alive`, or `refused` and the constraint.
    """
    with translated(), conn.transaction():
        row = conn.execute(REPLAY_QUARANTINED, [number, who, reason]).fetchone()
    return str(row[0]) if row else "unknown"


REVOKE = "SELECT revoke_token(%s, %s, %s)"


def revoke(conn: Connection[Any], token: UUID, *, who: str, reason: str) -> bool:
    """Revoke a token; False when it is unknown or was revoked before. In force within a second or two."""
    with translated(), conn.transaction():
        row = conn.execute(REVOKE, [token, who, reason]).fetchone()
    return bool(row and row[0])
