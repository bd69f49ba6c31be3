"""Identity: bearer token -> team and scopes.

A token is looked up by its SHA-256, so nothing about it can be learnt from how long that takes, and
the table holds nothing that could be used. The result is kept for a second, counted from before the
question: a revocation is in force within two. With the database away the answer is 503, never 401.
"""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from db import tokens
from portal.database import Database
from portal.problems import Problem
from portal.shared_looks import SharedLooks

#: Seconds for which a token that was found in force is believed.
BELIEVED_SECONDS = 1.0
#: Tokens in use at one time; the least recently used is forgotten first.
MAX_BELIEVED = 10_000
#: RFC 6750's b68token, within reason: nothing else is worth a question to the database.
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]{8,512}=*)")
CHALLENGE = 'Bearer realm="oncommit"'


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a team, by one of its tokens."""

    team: str
    token: UUID
    scopes: frozenset[str]

    @property
    def who(self) -> str:
        """The name that events carry."""
        return f"token:{self.token}"


class Identities:
    """Finds callers, and remembers them for a second."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._believed: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._looks = SharedLooks[bytes, Caller](BELIEVED_SECONDS)

    async def caller(self, authorization: Sequence[str]) -> Caller:
        """Return who sent these Authorization headers.

        Raises:
            Problem: unauthenticated.
            db.errors.DatabaseError: it cannot be known now.

        """
        found = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
        if found is None:
            raise Problem("unauthenticated", headers={"WWW-Authenticate": CHALLENGE})
        token_hash = hashlib.sha256(found[1].encode()).digest()
        until, caller = self._believed.get(token_hash, (0.0, None))
        if caller is not None and time.monotonic() < until:
            self._believed.move_to_end(token_hash)
            return caller
        return await self._looks.at(token_hash, lambda: self._ask(token_hash))

    async def _ask(self, token_hash: bytes) -> Caller:
        asked = time.monotonic()
        row = await self._database.run(lambda conn: tokens.token(conn, token_hash))
        if row is None:
            self._believed.pop(token_hash, None)
            raise Problem(
                "unauthenticated", headers={"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'}
            )
        caller = Caller(row.team, row.id, frozenset(row.scopes))
        believed = min(
            BELIEVED_SECONDS, row.valid_seconds if row.valid_seconds is not None else BELIEVED_SECONDS
        )
        self._believed[token_hash] = (asked + believed, caller)
        self._believed.move_to_end(token_hash)
        while len(self._believed) > MAX_BELIEVED:
            self._believed.popitem(last=False)
        return caller


def require(caller: Caller, *scopes: str) -> None:
    """Let the caller pass if it has one of `scopes`.

    Raises:
        Problem: forbidden.

    """
    if caller.scopes.isdisjoint(scopes):
        needed = " or ".join(scopes)
        raise Problem(
            "forbidden",
            f"This needs a token with scope {needed}.",
            headers={"WWW-Authenticate": f'{CHALLENGE}, error="insufficient_scope", scope="{needed}"'},
        )
