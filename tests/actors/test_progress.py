"""A worker that can render or store nothing is not ready, and is again once it can."""

from uuid import UUID, uuid4

import pytest

from actors.errors import ArtifactNotStored, DocumentMissing, RenderCrashed, RendererUnavailable
from actors.progress import MOST, Progress
from support.bench import Bench
from support.kinds import kinds
from support.processes import Processes
from support.waiting import eventually

JOB = UUID(int=1)
QUICK = {"ONCOMMIT_BACKOFF_BASE_MS": "50", "ONCOMMIT_BACKOFF_CAP_MS": "200"}


@pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)
def test_a_worker_whose_store_takes_nothing_is_unready_until_it_does(bench: Bench, whole: Processes) -> None:
    worker = whole.worker(**QUICK)
    bench.settled(bench.accept(kind="page"))
    incoming, aside = whole.blobs / "incoming", whole.blobs / "aside"
    incoming.rename(aside)
    incoming.touch()
    (job,) = bench.accept(kind="thumbnail", max_attempts=1)  # the document is there, its preview is not
    eventually(lambda: worker.get("/readyz") == 503)
    page = worker.page("/readyz")
    assert '"renders":"ArtifactNotStored"' in page
    assert worker.get("/livez") == 200
    assert bench.row(job).releases >= 1
    incoming.unlink()
    aside.rename(incoming)
    eventually(lambda: worker.get("/readyz") == 200)
    assert bench.settled() == {"succeeded": 2}
    assert '"renders":"ok"' in worker.page("/readyz")


def test_so_many_releases_in_a_row_are_trouble_and_one_success_ends_it() -> None:
    progress = Progress()
    for _ in range(MOST - 1):
        progress.failed(JOB, RendererUnavailable("no child"))
    assert progress.trouble == ""
    progress.made()
    for _ in range(MOST - 1):
        progress.failed(JOB, ArtifactNotStored("full"))
    assert progress.trouble == "", "counted anew since the success"
    progress.failed(JOB, OSError("no descriptor left"))
    assert progress.trouble == "OSError"
    progress.made()
    assert progress.trouble == ""


def test_what_a_document_does_is_no_trouble_of_the_workers() -> None:
    progress = Progress()
    for _ in range(2 * MOST):
        progress.failed(JOB, RenderCrashed(-9))
        progress.failed(JOB, DocumentMissing("the same, again and again"))
    assert progress.trouble == ""
    for _ in range(MOST):
        progress.failed(uuid4(), DocumentMissing("another one"))
    assert progress.trouble == "DocumentMissing", "every document is missing: it is the store"
