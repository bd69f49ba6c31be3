"""What the portal reads of tokens: whose one is, and whether it is still in force."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from db.errors import translated


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is in force; `valid_seconds` is how long it still is, None without an end."""

    id: UUID
    team: str
    scopes: Sequence[str]
    valid_seconds: float | None


FIND_BY_HASH = """
SELECT id, team, scopes, extract(epoch FROM expires_at - clock_timestamp())::float8 AS valid_seconds
  FROM tokens
 WHERE hash = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
"""


async def token(conn: AsyncConnection[Any], token_hash: bytes) -> Token | None:
    """Return the token with this SHA-256, None when it is unknown, expired or revoked."""
    with translated():
        async with conn.cursor(row_factory=class_row(Token)) as cursor:
            return await (await cursor.execute(FIND_BY_HASH, [token_hash])).fetchone()


TOKENS_IN_FORCE = """
SELECT id FROM tokens
 WHERE id = ANY(%s) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
"""


async def tokens_in_force(conn: AsyncConnection[Any], ids: Sequence[UUID]) -> set[UUID]:
    """Return those of `ids` that are neither revoked nor expired."""
    with translated():
        rows = await (await conn.execute(TOKENS_IN_FORCE, [list(ids)])).fetchall()
    return {row[0] for row in rows}
