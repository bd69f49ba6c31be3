"""`oncommit submit`: files and folders to a running portal."""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ops.batch_stream import follow_batch, jobs_of, tally
from ops.board import Board
from ops.client import Accepted, Client
from ops.commands.who import AsJson
from ops.delivery import Refused, Wish, deliver_all, fetch_previews, put_all
from ops.exit_codes import LIMIT_REACHED, TROUBLE
from ops.following import Followed
from ops.job_streams import follow
from ops.patience import Patience
from ops.show import printable
from ops.submission import PRIORITY, Kind, Paper, SubmissionError, papers

Paths = Annotated[
    list[Path], typer.Argument(help="files, and folders with all files below them", show_default=False)
]
Kinds = Annotated[list[Kind] | None, typer.Option("--kind", help="repeatable; default: page")]
Priority = Annotated[int, typer.Option(min=0, max=9, help="0 is taken first, 9 last, inside the team")]
AsBatch = Annotated[
    bool,
    typer.Option("--batch", help="one batch: all jobs are accepted, or none; another file, another batch"),
]
Wait = Annotated[bool, typer.Option("--wait", help="follow the jobs until each has ended")]
Url = Annotated[str, typer.Option(envvar="ONCOMMIT_URL", help="the portal")]
PORTAL = "http://127.0.0.1:8080"  # where `python -m portal` listens by default
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
    batch: AsBatch = False,
    wait: Wait = False,
    url: Url = PORTAL,
    token: Token = "",
    run_id: RunId = "",
    timeout: Seconds = 3600.0,
    patience: Retrying = 60.0,
    previews: Previews = None,
    as_json: AsJson = False,
) -> None:
    """Submit files to a portal. The same command gives the same jobs, so an interrupted one is just repeated.

    The token may also lie in a file, which ONCOMMIT_TOKEN_FILE names.

    Exit code 0 when every file was accepted and, with --wait, every job succeeded; 3 when --timeout passed
    before the last job's end; 2 without URL or token; else 1.

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
    with Client(url, token or token_from_file(), Patience(patience), tell=_say) as client:
        through = _as_batch if batch else _one_by_one
        jobs, refused = through(client, found, wish, timeout if wait else None, console)
        files = fetch_previews(client, jobs, previews) if previews else []
    if as_json:
        typer.echo(json.dumps(facts(jobs, refused, files)))
    else:
        _tell(jobs, refused, files, followed=wait)
    if refused or any(job.ended and not job.succeeded for job in jobs if wait):
        raise typer.Exit(TROUBLE)
    if wait and not all(job.ended for job in jobs):
        raise typer.Exit(LIMIT_REACHED)


def _say(sentence: str) -> None:
    typer.echo(f"oncommit: {sentence} Ctrl-C stops it; the same command goes on.", err=True)


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


def _one_by_one(
    client: Client, found: Sequence[Paper], wish: Wish, timeout: float | None, console: Console
) -> tuple[list[Followed], list[Refused]]:
    """Submit each job under a key of its own, and follow them where there is a timeout."""
    with _uploading(found) as sent:
        accepted, refused = deliver_all(client, found, wish, sent)
    if timeout is None:
        return [_as_accepted(one) for one in accepted], refused
    with Board(console) as board:
        return follow(client, accepted, board.show, timeout_seconds=timeout), refused


def _as_batch(
    client: Client, found: Sequence[Paper], wish: Wish, timeout: float | None, console: Console
) -> tuple[list[Followed], list[Refused]]:
    """Submit all jobs at once, unless a file is refused, and follow the batch's stream."""
    with _uploading(found) as sent:
        orders, refused = put_all(client, found, wish, sent)
    if refused:
        return [], refused
    accepted = client.post_batch(orders, wish.run_id)
    if timeout is not None:
        with console.status("") as status:
            told = ""

            def show(batch: Mapping[str, Any]) -> None:
                nonlocal told
                if told != (line := tally(batch)):
                    told = line
                    status.update(line)
                    if not console.is_terminal:
                        console.print(line, markup=False, highlight=False, soft_wrap=True)

            follow_batch(client, accepted.job, show, timeout_seconds=timeout)
    return jobs_of(client, accepted.job, replayed=accepted.replayed), []


@contextmanager
def _uploading(found: Sequence[Paper]) -> Generator[Callable[[int], None], None, None]:
    columns = [TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    bar = Console(stderr=True)
    with Progress(*columns, console=bar, transient=True, disable=not bar.is_terminal) as progress:
        task = progress.add_task("", total=sum(paper.file.stat().st_size for paper in found))
        yield lambda size: progress.advance(task, size)


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
            typer.echo(f"{job.id}\t{job.kind}\t{printable(job.title)}")
    for one in refused:
        typer.echo(printable(f"{one.paper.file}: {one.problem}"), err=True)
    if again := sum(job.replayed for job in jobs):
        typer.echo(
            f"{again} of {len(jobs)} were accepted before (same file, kind, priority, title and --run-id)",
            err=True,
        )
    if followed:
        typer.echo(f"{sum(job.succeeded for job in jobs)} of {len(jobs)} succeeded", err=True)
        for job in jobs:
            if not job.succeeded:
                still = "" if job.ended else "still "
                typer.echo(printable(f"{job.title} ({job.kind}) is {still}{job.told()}: {job.id}"), err=True)
    for file in files:
        typer.echo(str(file))
