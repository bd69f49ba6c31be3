"""`oncommit submit`: files and folders to a running portal."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ops.board import Board
from ops.client import Accepted, Client
from ops.commands.who import AsJson
from ops.delivery import Refused, Wish, deliver_all, fetch_previews
from ops.following import Followed, follow
from ops.patience import Patience
from ops.submission import PRIORITY, Kind, Paper, SubmissionError, papers

Paths = Annotated[
    list[Path], typer.Argument(help="files, and folders with all files below them", show_default=False)
]
Kinds = Annotated[list[Kind] | None, typer.Option("--kind", help="repeatable; default: page")]
Priority = Annotated[int, typer.Option(min=0, max=9, help="0 is taken first, 9 last, inside the team")]
Wait = Annotated[bool, typer.Option("--wait", help="follow the jobs until each has ended")]
Url = Annotated[str, typer.Option(envvar="ONCOMMIT_URL", help="the portal")]
Token = Annotated[str, typer.Option(envvar="ONCOMMIT_TOKEN", help="the team's token; safer in the variable")]
RunId = Annotated[str, typer.Option(help="part of each key: another one makes new jobs of the same files")]
Seconds = Annotated[float, typer.Option(min=0, help="with --wait: stop following after so many seconds")]
Retrying = Annotated[float, typer.Option(min=0, help="try one request again for so many seconds")]
Previews = Annotated[Path | None, typer.Option(help="with --wait: fetch the previews into this folder")]


def submit(
    paths: Paths,
    kind: Kinds = None,
    priority: Priority = PRIORITY,
    *,
    wait: Wait = False,
    url: Url = "http://127.0.0.1:8080",
    token: Token = "",
    run_id: RunId = "",
    timeout: Seconds = 3600.0,
    patience: Retrying = 60.0,
    previews: Previews = None,
    as_json: AsJson = False,
) -> None:
    """Submit files to a portal. The same command gives the same jobs, so an interrupted one is just repeated.

    Exit code 0 when every file was accepted and, with --wait, every job succeeded; else 1.

    Example: oncommit submit reports/ --kind page --kind thumbnail --wait
    """
    if previews is not None and not wait:
        raise typer.BadParameter("needs --wait", param_hint="--previews")
    try:
        found = papers(paths)
    except SubmissionError as error:
        raise typer.BadParameter(str(error), param_hint="PATHS") from error
    wish = Wish(list(dict.fromkeys(kind or [Kind.page])), priority, run_id)
    console = Console(stderr=as_json)
    with Client(url, token or token_from_file(), Patience(patience)) as client:
        accepted, refused = _deliver(client, found, wish)
        jobs = (
            _follow(client, accepted, timeout, console) if wait else [_as_accepted(one) for one in accepted]
        )
        files = fetch_previews(client, jobs, previews) if previews else []
    if as_json:
        typer.echo(json.dumps(facts(jobs, refused, files)))
    else:
        _tell(jobs, refused, files, followed=wait)
    if refused or (wait and not all(job.succeeded for job in jobs)):
        raise typer.Exit(1)


def token_from_file() -> str:
    """Return the token in the file that ONCOMMIT_TOKEN_FILE names; empty without the variable.

    Raises:
        typer.BadParameter: the file cannot be read.

    """
    name = os.environ.get("ONCOMMIT_TOKEN_FILE")
    if not name:
        return ""
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise typer.BadParameter(
            f"cannot read {name}: {error.strerror}", param_hint="ONCOMMIT_TOKEN_FILE"
        ) from error


def _deliver(client: Client, found: Sequence[Paper], wish: Wish) -> tuple[list[Accepted], list[Refused]]:
    columns = [TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    bar = Console(stderr=True)
    with Progress(*columns, console=bar, transient=True, disable=not bar.is_terminal) as progress:
        task = progress.add_task("", total=sum(paper.file.stat().st_size for paper in found))
        return deliver_all(client, found, wish, lambda size: progress.advance(task, size))


def _follow(client: Client, accepted: Sequence[Accepted], timeout: float, console: Console) -> list[Followed]:
    with Board(console) as board:
        return follow(client, accepted, board.show, timeout_seconds=timeout)


def _as_accepted(one: Accepted) -> Followed:
    return Followed.of(one.job, replayed=one.replayed)


def facts(jobs: Sequence[Followed], refused: Sequence[Refused], files: Sequence[Path]) -> dict[str, Any]:
    """Return everything that a script may want to know: one JSON object."""
    return {
        "jobs": [job.facts() for job in jobs],
        "refused": [{"file": str(one.paper.file), "problem": one.problem} for one in refused],
        "previews": [str(file) for file in files],
    }


def _tell(
    jobs: Sequence[Followed],
    refused: Sequence[Refused],
    files: Sequence[Path],
    *,
    followed: bool,
) -> None:
    if not followed:
        for job in jobs:
            typer.echo(f"{job.id}\t{job.kind}\t{job.title}")
    for one in refused:
        typer.echo(f"{one.paper.file}: {one.problem}", err=True)
    if again := sum(job.replayed for job in jobs):
        typer.echo(
            f"{again} of {len(jobs)} were accepted before (same file, kind, priority, title and --run-id)",
            err=True,
        )
    if followed:
        typer.echo(f"{sum(job.succeeded for job in jobs)} of {len(jobs)} succeeded", err=True)
        for job in jobs:
            if not job.ended:
                typer.echo(f"{job.title} ({job.kind}) is still {job.status.value}: {job.id}", err=True)
    for file in files:
        typer.echo(str(file))
