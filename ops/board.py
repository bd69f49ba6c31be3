"""The board: jobs as a live table on a terminal, and as a line for each change of status elsewhere."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from db.jobs import JobStatus
from ops.following import Followed

# More rows than a terminal shows would only flicker.
SHOWN_ROWS = 25

STYLES: Mapping[JobStatus, str] = {
    JobStatus.QUEUED: "dim",
    JobStatus.PROCESSING: "cyan",
    JobStatus.RETRYING: "yellow",
    JobStatus.SUCCEEDED: "green",
    JobStatus.DEAD: "bold red",
    JobStatus.CANCELLED: "red",
}


def table(jobs: Sequence[Followed]) -> Table:
    """Return the table of the jobs; of many, those that have not ended come first and the rest is counted."""
    found = Table("document", "kind", "status", "attempts", "accepted to end")
    shown = jobs if len(jobs) <= SHOWN_ROWS else sorted(jobs, key=lambda job: job.ended)[:SHOWN_ROWS]
    for job in shown:
        # Text, not markup: a file may be called [red].
        found.add_row(*(Text(cell) for cell in job.cells()), style=STYLES[job.status])
    left_out = f"; {len(jobs) - len(shown)} more" if len(shown) < len(jobs) else ""
    found.caption = f"{sum(job.succeeded for job in jobs)} of {len(jobs)} succeeded{left_out}"
    return found


class Board:
    """Shows jobs on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._told: dict[str, JobStatus] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, jobs: Sequence[Followed]) -> None:
        """Show what is known now."""
        if self._live is not None:
            self._live.update(table(jobs), refresh=True)
            return
        for job in jobs:
            if self._told.get(job.id) is not job.status:
                self._told[job.id] = job.status
                # Not wrapped: whatever reads lines must find each job on one.
                self._console.print(line(job), markup=False, highlight=False, soft_wrap=True)


def line(job: Followed) -> str:
    """Return a job as one line."""
    title, kind, status, attempts, seconds = job.cells()
    return f"{title} ({kind}): {status}, attempts {attempts}" + (f", {seconds}" if seconds else "")
