"""Who may call a route: the dependency that every route of a team has."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated

import structlog
from fastapi import Depends, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request

from portal.context import portal
from portal.door import visit
from portal.identity import Caller, require
from portal.problems import Fault, Problem

# It only describes: the header is judged in portal.identity, which knows repeated ones, too.
BEARER = HTTPBearer(auto_error=False, description="a token of the team, as `oncommit tokens create` shows it")


def _once_each(request: Request) -> None:
    """Refuse a parameter that is given twice: one reader would take the first of them, another the last."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    if twice := [Fault(name[:100], "given more than once") for name, count in given.items() if count > 1]:
        raise Problem("invalid-request", errors=twice)


async def called(request: Request, *scopes: str) -> Caller:
    """Return who calls, with one of these scopes and within the team's rate.

    Raises:
        Problem: unauthenticated, rate-limited, forbidden, invalid-request (a parameter that is given twice).
        db.errors.DatabaseError: it cannot be known now.

    """
    parts = portal(request)
    found = await parts.identities.caller(request.headers.getlist("authorization"))
    structlog.contextvars.bind_contextvars(team=found.team)
    visit(request).headers.update(parts.rates.spend(found.team))
    require(found, *scopes)
    _once_each(request)
    return found


def _needs(*scopes: str) -> Callable[..., Awaitable[Caller]]:
    async def caller(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> Caller:
        return await called(request, *scopes)

    return caller


SUBMIT = "submit"
Reader = Annotated[Caller, Depends(_needs("read"))]
Submitter = Annotated[Caller, Depends(_needs(SUBMIT))]
Canceller = Annotated[Caller, Depends(_needs(SUBMIT, "operate"))]
