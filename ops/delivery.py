"""Bring papers to the portal, several at a time, and their previews back."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ops.client import Accepted, Client, nothing
from ops.following import Followed
from ops.submission import EMPTY, Kind, Order, Paper
from ops.trying import PortalError

T = TypeVar("T")

# One portal's single acceptances are bounded by PostgreSQL's commits, which a few clients keep busy.
PARALLEL = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for of every paper."""

    kinds: Sequence[Kind]
    priority: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A paper that was not taken, and why."""

    paper: Paper
    problem: str


def deliver(
    client: Client, paper: Paper, wish: Wish, sent: Callable[[int], None] = nothing
) -> list[Accepted]:
    """Put one paper and ask for its previews.

    Raises:
        PortalError: it was not taken.
        OSError: the file cannot be read.

    """
    return [client.post(order, wish.run_id) for order in put(client, paper, wish, sent)]


def put(client: Client, paper: Paper, wish: Wish, sent: Callable[[int], None] = nothing) -> list[Order]:
    """Put one paper and return what is wished for it; raises as `deliver` does."""
    if paper.file.stat().st_size == 0:
        raise PortalError(EMPTY)
    digest = client.put(paper.file, sent)
    return [Order(digest, kind, wish.priority, paper.title) for kind in wish.kinds]


def deliver_all(
    client: Client, papers: Sequence[Paper], wish: Wish, sent: Callable[[int], None] = nothing
) -> tuple[list[Accepted], list[Refused]]:
    """Put all papers and ask for their previews; return the jobs, in the papers' order, and what was refused.

    Raises:
        PortalError: the others would fare the same, so they were left out.

    """
    accepted, refused = _each(client, papers, lambda paper: deliver(client, paper, wish, sent))
    return as_jobs(accepted), refused


def as_jobs(accepted: Sequence[Accepted]) -> list[Accepted]:
    """Return each job once: two papers of the same content and title are one, and one of the two made it."""
    jobs: dict[str, Accepted] = {}
    for one in accepted:
        first = jobs.setdefault(one.job["id"], one)
        jobs[one.job["id"]] = Accepted(first.job, first.replayed and one.replayed)
    return list(jobs.values())


def put_all(
    client: Client, papers: Sequence[Paper], wish: Wish, sent: Callable[[int], None] = nothing
) -> tuple[list[Order], list[Refused]]:
    """Put all papers; return what is wished for them, as `deliver_all` does the jobs."""
    orders, refused = _each(client, papers, lambda paper: put(client, paper, wish, sent))
    return list(dict.fromkeys(orders)), refused


def _each(
    client: Client, papers: Sequence[Paper], work: Callable[[Paper], list[T]]
) -> tuple[list[T], list[Refused]]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        try:
            futures = {pool.submit(work, paper): paper for paper in papers}
            for future in as_completed(futures):
                _leave_if_hopeless(future)
        except BaseException:
            # Ctrl-C too: what has begun is let end, but no more than that.
            client.give_up()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    done: list[T] = []
    refused: list[Refused] = []
    for future, paper in futures.items():
        problem = _problem(future)
        if problem is None:
            done += future.result()
        else:
            refused.append(Refused(paper, problem))
    return done, refused


def _leave_if_hopeless(future: Future[list[T]]) -> None:
    error = future.exception()
    if isinstance(error, PortalError) and error.hopeless:
        raise error


def _problem(future: Future[list[T]]) -> str | None:
    error = future.exception()
    if error is None:
        return None
    if isinstance(error, PortalError):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    raise error


def fetch_previews(client: Client, jobs: Sequence[Followed], folder: Path) -> list[Path]:
    """Fetch the preview of each job that succeeded to `<document>.<kind>.png` in `folder`; return the files.

    Raises:
        PortalError: one cannot be had.
        OSError: one cannot be written.

    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for job in jobs:
        if job.succeeded:
            target = folder / preview_name(job, {file.name for file in files})
            client.preview(job.id, target)
            files.append(target)
    return files


# File names end at 255 bytes in every file system of note.
STEM_BYTES = 200


def preview_name(job: Followed, taken: set[str]) -> str:
    """Return the file name of a job's preview, with a number when the plain one is taken."""
    stem = "".join(c if c.isprintable() and c != "/" else "_" for c in job.title).lstrip(".") or "document"
    stem = stem.encode()[:STEM_BYTES].decode(errors="ignore")
    name, n = f"{stem}.{job.kind}.png", 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}.{job.kind}.png"
    return name
