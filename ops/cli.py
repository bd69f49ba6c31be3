"""The `oncommit` command: the operator's hands. Each sub-command is a module of `ops.commands`.

Whatever it cannot do is one line on stderr that says what to do; the exit codes are in `ops.exit_codes`.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import psycopg
import typer

from db.errors import DatabaseError, Refused, Unavailable
from db.migrate import MigrationError
from ops.account import NoAccountError
from ops.binaries import NoServerError
from ops.commands import (
    artifacts,
    config,
    dead,
    demo,
    dispatch,
    doctor,
    jobs,
    lists,
    migrate,
    probe,
    prune,
    quarantine,
    run,
    submit,
    teams,
    tokens,
    up,
)
from ops.exit_codes import EPILOG, TROUBLE, USAGE
from ops.home import HomeError
from ops.ports import NoPortError
from ops.processes import StartError
from ops.stale import StaleVariablesError
from ops.trying import NotGivenError, PortalError
from ops.verifying import NoStoreError, RepairError
from runtime.logs import redact
from runtime.settings import SettingsError

# Errors whose own text tells a human what to do.
MISUSED = (SettingsError, NotGivenError, StaleVariablesError)
TOLD = (
    *MISUSED,
    MigrationError,
    HomeError,
    NoServerError,
    NoAccountError,
    NoPortError,
    StartError,
    PortalError,
    NoStoreError,
    RepairError,
)

app = typer.Typer(
    name="oncommit",
    help="Dispatch of accepted work: a job exists the moment its rows commit.",
    no_args_is_help=True,
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=EPILOG)(config.config)
app.command(epilog=EPILOG)(migrate.migrate)
app.command(epilog=EPILOG)(up.up)
app.command(epilog=EPILOG)(run.run)
app.command(epilog=EPILOG)(submit.submit)
app.command(epilog=EPILOG)(demo.demo)
app.add_typer(teams.app, name="teams")
app.add_typer(tokens.app, name="tokens")
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")
dispatch.app.command(epilog=EPILOG)(probe.probe)
app.add_typer(dispatch.app, name="dispatch")
app.add_typer(artifacts.app, name="artifacts")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(lists.workers, name="workers")
app.add_typer(lists.actions, name="actions")
app.command(epilog=EPILOG)(prune.prune)
app.command(epilog=EPILOG)(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"oncommit {version('oncommit')}")
    except PackageNotFoundError:
        typer.echo("oncommit (not installed: run from its source)")
    raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Dispatch of accepted work: a job exists the moment its rows commit."""


def advice(error: Exception) -> str:
    """Return one line for a human: what is wrong and what to do."""
    if isinstance(error, Unavailable):
        return f"PostgreSQL does not serve ({error}): check ONCOMMIT_DATABASE_URL, and that the server runs"
    if isinstance(error, Refused):
        return (
            f"PostgreSQL refused ({error}): run `oncommit migrate` as the owner, "
            "and act as oncommit_operator or the owner"
        )
    if isinstance(error, psycopg.OperationalError):
        first = str(error).strip().splitlines()[:1] or ["no answer"]
        return (
            f"PostgreSQL does not serve ({first[0]}): check ONCOMMIT_DATABASE_URL, and that the server runs"
        )
    return str(error) or type(error).__name__


def main() -> None:
    """Run the command line; expected trouble is one line and exit code 1 or 2, never a traceback."""
    try:
        app()
    except (*TOLD, DatabaseError, psycopg.Error) as error:
        # Some carry the end of a log after their line: that is what the human needs next.
        typer.echo(f"oncommit: {redact(advice(error))}", err=True)
        sys.exit(USAGE if isinstance(error, MISUSED) else TROUBLE)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        typer.echo("oncommit: an argument is no UTF-8: set the terminal's encoding to UTF-8", err=True)
        sys.exit(USAGE)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        typer.echo(f"oncommit: {redact(where)}{error.strerror or type(error).__name__}", err=True)
        sys.exit(TROUBLE)


if __name__ == "__main__":
    main()
