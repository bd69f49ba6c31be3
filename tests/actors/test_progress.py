"""A worker that can render or store nothing is not ready, and is again once it can."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from actors.errors import ArtifactNotStored, DocumentMissing, RenderCrashed, RendererUnavailable
from actors.progress import MOST, Progress
from support.bench import Bench
from support.kinds import kinds
from support.processes import Processes
from support.waiting import eventually

JOB = UUID(int=1)


def never() -> None:
    raise AssertionError("nobody is to try")


QUICK = {"ONCOMMIT_BACKOFF_BASE_MS": "50", "ONCOMMIT_BACKOFF_CAP_MS": "200"}


@contextmanager
def nothing_taken(store: Path) -> Generator[None]:
    """Let the store take nothing for the block: where its writers begin there is no folder."""
    incoming, aside = store / "incoming", store / "aside"
    incoming.rename(aside)
    incoming.touch()
    yield
    incoming.unlink()
    aside.rename(incoming)


@pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)
def test_a_worker_whose_store_takes_nothing_is_unready_until_it_does(bench: Bench, whole: Processes) -> None:
    worker = whole.worker(**QUICK)
    bench.settled(bench.accept(kind="page"))
    with nothing_taken(whole.blobs):
        (job,) = bench.accept(kind="thumbnail", max_attempts=1)  # the document is there, its preview is not
        eventually(lambda: worker.get("/readyz") == 503)
        page = worker.page("/readyz")
        assert '"renders":"ArtifactNotStored"' in page
        assert worker.get("/livez") == 200
        assert bench.row(job).releases >= 1
    eventually(lambda: worker.get("/readyz") == 200)
    assert bench.settled() == {"succeeded": 2}
    assert '"renders":"ok"' in worker.page("/readyz")


@pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)
def test_an_idle_worker_is_ready_again_as_soon_as_its_store_is(bench: Bench, whole: Processes) -> None:
    worker = whole.worker(**QUICK)
    bench.settled(bench.accept(kind="page"))
    with nothing_taken(whole.blobs):
        assert bench.settled(bench.accept(kind="thumbnail", max_attempts=1)) == {"dead": 1}, "no job is left"
        assert worker.get("/readyz") == 503
    eventually(lambda: worker.get("/readyz") == 200)
    assert '"renders":"ok"' in worker.page("/readyz")


def test_what_failed_is_tried_while_there_is_trouble_and_at_no_other_time() -> None:
    progress, tries = Progress(), list[Exception | None]()

    def again() -> None:
        tries.append(error := ArtifactNotStored("full") if not tries else None)
        if error is not None:
            raise error

    for _ in range(MOST - 1):
        progress.failed(JOB, ArtifactNotStored("full"), again)
        progress.look()
    assert tries == []
    progress.failed(JOB, ArtifactNotStored("full"), again)
    progress.look()
    assert (len(tries), progress.trouble) == (1, "ArtifactNotStored"), "still full"
    progress.look()
    assert (len(tries), progress.trouble) == (2, ""), "there is room"
    progress.look()
    assert len(tries) == 2


def test_so_many_releases_in_a_row_are_trouble_and_one_success_ends_it() -> None:
    progress = Progress()
    for _ in range(MOST - 1):
        progress.failed(JOB, RendererUnavailable("no child"), never)
    assert progress.trouble == ""
    progress.made()
    for _ in range(MOST - 1):
        progress.failed(JOB, ArtifactNotStored("full"), never)
    assert progress.trouble == "", "counted anew since the success"
    progress.failed(JOB, OSError("no descriptor left"), never)
    assert progress.trouble == "OSError"
    progress.made()
    assert progress.trouble == ""


def test_what_a_document_does_is_no_trouble_of_the_workers() -> None:
    progress = Progress()
    for _ in range(2 * MOST):
        progress.failed(JOB, RenderCrashed(-9), never)
        progress.failed(JOB, DocumentMissing("the same, again and again"), never)
    assert progress.trouble == ""
    for _ in range(MOST):
        progress.failed(uuid4(), DocumentMissing("another one"), never)
    assert progress.trouble == "DocumentMissing", "every document is missing: it is the store"
