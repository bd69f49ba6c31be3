"""`oncommit run`: the whole stack, and documents going through it before one's eyes."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ops.board import Board
from ops.client import Client
from ops.commands.up import HomeFolder, Threads, Workers
from ops.delivery import Wish, deliver, fetch_previews
from ops.exit_codes import INTERRUPTED, LIMIT_REACHED, TROUBLE
from ops.following import Followed
from ops.job_streams import follow
from ops.patience import Patience
from ops.sample_documents import sample_documents
from ops.signals import interrupt_on_termination
from ops.stack import Stack, StackPlan
from ops.submission import EMPTY, PRIORITY, Kind, Paper, SubmissionError, papers

Files = Annotated[
    list[Path] | None, typer.Argument(help="documents of yours, besides the samples", show_default=False)
]
ExitWhenDone = Annotated[
    bool, typer.Option("--exit-when-done", help="for scripts: stop instead of serving on")
]
Seconds = Annotated[float, typer.Option(min=0, help="wait for the previews at most so many seconds")]

TOKEN_FILE = "client-token"  # noqa: S105 -- a file's name
# The stack restarts what dies within seconds; a portal that is away longer than that stays away.
PATIENCE_SECONDS = 30.0


def run(
    files: Files = None,
    home: HomeFolder = Path(".oncommit"),
    workers: Workers = 1,
    threads: Threads = 4,
    timeout: Seconds = 300.0,
    *,
    exit_when_done: ExitWhenDone = False,
) -> None:
    """Start everything, send the sample documents and yours through it, show it, and serve until Ctrl-C.

    Exit code 0 when every job succeeded, 1 when one did not, 3 when --timeout passed, 130 when it was
    stopped before.

    Example: oncommit run report.pdf notes.md
    """
    interrupt_on_termination()
    console = Console()
    try:
        found = papers([*sample_documents(), *(files or [])])
    except SubmissionError as error:
        raise typer.BadParameter(str(error), param_hint="FILES") from error
    for paper in found:
        if paper.file.stat().st_size == 0:
            raise typer.BadParameter(f"{paper.file}: {EMPTY}", param_hint="FILES")
    plan = StackPlan(home=home, workers=workers, threads=threads)
    jobs: list[Followed] = []
    try:
        # Through the console, so that a restart that is told does not tear the live table.
        with Stack(
            plan, say=lambda text: console.print(text, style="dim", markup=False, soft_wrap=True)
        ) as stack:
            jobs = render(stack, found, console, timeout)
            if not exit_when_done:
                console.print("Ctrl-C stops everything.")
                stack.serve()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    if code := _code(jobs):
        raise typer.Exit(code)


def _code(jobs: list[Followed]) -> int:
    if not jobs:
        return INTERRUPTED
    if any(job.ended and not job.succeeded for job in jobs):
        return TROUBLE
    return 0 if all(job.ended for job in jobs) else LIMIT_REACHED


def render(stack: Stack, found: list[Paper], console: Console, timeout_seconds: float) -> list[Followed]:
    """Send the papers through the stack, fetch their previews and tell where they lie; return the jobs.

    Raises:
        PortalError: the portal refuses a paper, or is away too long.

    """
    # Each run is to be seen working: its keys are its own, so that no job of an earlier run is found.
    wish = Wish(list(Kind), PRIORITY, run_id=f"run-{time.time_ns()}")
    reach = (stack.portals[0], stack.token, Patience(PATIENCE_SECONDS))
    # The stack is tended by this thread alone; those that follow only wait.
    with Client(*reach, sleep=tending_sleep(stack)) as client, Client(*reach) as follower:
        accepted = [job for paper in found for job in deliver(client, paper, wish)]
        with Board(console) as board:
            jobs = follow(
                follower, accepted, board.show, timeout_seconds=timeout_seconds, meanwhile=stack.tend
            )
        previews = fetch_previews(client, jobs, stack.home.path / "previews")
    stack.home.keep_secret(TOKEN_FILE, stack.token)
    for sentence in sentences(stack, jobs, previews):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    return jobs


def tending_sleep(stack: Stack, look_every_seconds: float = 0.2) -> Callable[[float], None]:
    """Return a `sleep` that looks after the stack meanwhile."""

    def sleep(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            stack.tend()
            time.sleep(min(left, look_every_seconds))

    return sleep


def sentences(stack: Stack, jobs: list[Followed], previews: list[Path]) -> list[str]:
    """Return what to tell when the jobs have ended: the previews, and how to go on by oneself."""
    url = stack.portals[0]
    token = shlex.quote(str(stack.home.path / "secrets" / TOKEN_FILE))
    lines = ["", f"{sum(job.succeeded for job in jobs)} of {len(jobs)} jobs succeeded. Their previews:"]
    lines += [f"  {_short(file)}" for file in previews]
    lines += [
        f"The portal of team {stack.team} is at {url} (its pages: {url}/docs); its token is in {token}. Try:",
        f'  curl -sS -H "Authorization: Bearer $(cat {token})" {url}/v1/jobs/{jobs[0].id}',
        f"  ONCOMMIT_URL={url} ONCOMMIT_TOKEN_FILE={token} {_program()} submit FILE --wait",
        f"  ONCOMMIT_DATABASE_URL='{stack.reach.parts['operator']}' {_program()} dispatch status",
    ]
    return lines


def _program() -> str:
    """Return how this very program is called from here: `make run` does not put it on the path."""
    called = Path(sys.argv[0])
    if called.name != "oncommit":
        return f"{shlex.quote(sys.executable)} -m ops"
    return "oncommit" if shutil.which("oncommit") else shlex.quote(str(_short(called.absolute())))


def _short(file: Path) -> Path:
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
