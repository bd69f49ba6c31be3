"""Lists, batches, cancellation, previews: what a team sees and does after acceptance."""

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from db.accept import ACCEPT
from portal import resources
from runtime.blobs import BlobStore
from support.team import Client, House, rows

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4


def finish(house: House, client: Client, job: dict[str, Any], content: bytes = PNG) -> str:
    """Claim and finish the job as a worker would; return the artifact's digest."""
    digest = BlobStore(Path(house.processes.blobs)).put_bytes(content)
    worker = uuid.uuid4()
    client.database.admin.execute(
        "SELECT * FROM claim_jobs(%s, %s, %s)", [worker, [uuid.UUID(job["id"])], [job["dispatch_no"]]]
    )
    client.database.admin.execute(
        "SELECT * FROM finish_jobs(%s, %s, %s, ARRAY[1], %s, %s::bigint[])",
        [worker, [uuid.UUID(job["id"])], [job["dispatch_no"]], [digest], [len(content)]],
    )
    return digest


def walk(client: Client, during: Any = lambda: None, **params: Any) -> list[str]:
    """Return the ids of every page."""
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = client.http.get("/v1/jobs", params=params | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        resources.JobPage.model_validate(answer.json())
        found += [job["id"] for job in answer.json()["jobs"]]
        cursor = answer.json()["next"]
        during()
    return found


def test_pages_miss_and_repeat_nothing_while_jobs_arrive(client: Client) -> None:
    digest = client.put()
    before = [client.post({"document": digest, "kind": "page"}).json()["id"] for _ in range(25)]
    found = walk(client, lambda: client.post({"document": digest, "kind": "page"}), limit=4)
    assert sorted(found) == sorted(set(found))
    assert found == before[::-1]


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_an_acceptance_that_commits_between_pages_costs_no_other_job_its_place(
    client: Client, pages: int
) -> None:
    """Its time is that of its statement, so it appears among jobs that were visible before it."""
    body = {"document": client.put(), "kind": "page"}
    older = [client.post(body).json()["id"] for _ in range(5)]
    late = uuid.uuid4()
    read = 0
    with client.database.server.connect(client.database.name) as open_one:
        open_one.execute("BEGIN")
        job = [[late], ["page"], [body["document"]], [None], [5], [None], [None]]
        outcome = open_one.execute(ACCEPT, [client.team, "late", b"f" * 32, None, False, *job, None, "x"])
        assert outcome.fetchone()[0] == "new"  # type: ignore[index]
        newer = [client.post(body).json()["id"] for _ in range(5)]

        def one_more() -> None:
            nonlocal read
            read += 1
            if read == pages:
                open_one.execute("COMMIT")

        found = walk(client, one_more, limit=3)
    visible = [*older, *newer][::-1]
    assert [job for job in found if job != str(late)] == visible
    # On a page that was still to come it may appear, in its place, and once.
    assert found.count(str(late)) == (1 if pages == 1 else 0)
    assert walk(client, limit=3) == [*newer[::-1], str(late), *older[::-1]]


def test_filters_of_a_list(client: Client, house: House) -> None:
    digest = client.put()
    one = {"document": digest, "kind": "page"}
    batch = client.post({"jobs": [one, one | {"kind": "thumbnail"}]}, path="/v1/batches").json()
    single = client.post(one).json()
    finish(house, client, single)
    assert walk(client, status="succeeded") == [single["id"]]
    assert len(walk(client, status="queued")) == 2
    assert len(walk(client, batch=batch["id"])) == 2
    assert len(walk(client, batch=batch["id"], kind="thumbnail")) == 1


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=101", "limit=1000000000", "limit=1e3", "limit=9223372036854775808",
        "limit=x", "limit=%00", "status=%00", "status=nope", "kind=video", "batch=x", "batch=%00", "cursor=x",
        "cursor=%00", "cursor=" + "A" * 43, "cursor=" + "A" * 5000, "unknown=1",
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_422(client: Client, query: str) -> None:
    answer = client.http.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")


def test_a_cursor_belongs_to_its_question_and_team(client: Client, other: Client) -> None:
    digest = client.put()
    for _ in range(3):
        client.post({"document": digest, "kind": "page"})
    cursor = client.http.get("/v1/jobs", params={"limit": 1}).json()["next"]
    assert client.http.get("/v1/jobs", params={"cursor": cursor}).status_code == 200
    assert client.http.get("/v1/jobs", params={"cursor": cursor, "kind": "page"}).status_code == 422
    assert other.http.get("/v1/jobs", params={"cursor": cursor}).status_code == 422


def test_a_batch_is_accepted_whole_or_not_at_all(client: Client) -> None:
    digest = client.put()
    one = {"document": digest, "kind": "page"}
    answer = client.post({"jobs": [one] * 300}, path="/v1/batches", key="k")
    assert answer.status_code == 202
    resources.Batch.model_validate(answer.json())
    assert answer.json()["counts"]["queued"] == answer.json()["size"] == 300
    assert rows(client) == {"jobs": 300, "events": 300, "intents": 300, "requests": 1, "batches": 1}
    again = client.post({"jobs": [one | {"priority": 5}] * 300}, path="/v1/batches", key="k")
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == answer.json()["id"]
    assert client.http.get(answer.headers["location"]).json() == answer.json()
    unknown = one | {"document": "sha256:" + "0" * 64}
    refused = client.post({"jobs": [one, unknown, one, unknown]}, path="/v1/batches")
    assert [e["pointer"] for e in refused.json()["errors"]] == ["/jobs/1/document", "/jobs/3/document"]
    wrong = client.post({"jobs": [one, one | {"priority": 10}, one | {"x": 1}]}, path="/v1/batches")
    assert [e["pointer"] for e in wrong.json()["errors"]] == ["/jobs/1/priority", "/jobs/2/x"]
    hopeless = client.post({"jobs": [{"kind": 1}] * 1000}, path="/v1/batches").json()
    assert (len(hopeless["errors"]), hopeless["errors_left_out"]) == (100, 1900)
    assert client.post({"jobs": []}, path="/v1/batches").status_code == 422
    assert client.post({"jobs": [one] * 10_001}, path="/v1/batches").status_code == 422
    assert rows(client)["jobs"] == 300


def test_the_largest_batch_is_taken_and_keeps_its_order(client: Client) -> None:
    digest = client.put()
    jobs = [{"document": digest, "kind": "page", "title": f"{n:05}"} for n in range(10_000)]
    answer = client.post({"jobs": jobs}, path="/v1/batches")
    assert answer.status_code == 202
    titles = client.database.admin.execute(
        "SELECT title FROM jobs WHERE team = %s ORDER BY id", [client.team]
    )
    assert [row[0] for row in titles.fetchall()] == [job["title"] for job in jobs]


def test_lines_are_a_batch_too_and_mean_the_same(client: Client) -> None:
    digest = client.put()
    line = f'{{"document":"{digest}","kind":"page"}}'
    headers = {"Idempotency-Key": "k", "Content-Type": "application/x-ndjson"}
    answer = client.http.post("/v1/batches", content=f"{line}\n\n{line}\r\n", headers=headers)
    assert (answer.status_code, answer.json()["size"]) == (202, 2)
    as_json = client.post({"jobs": [{"kind": "page", "document": digest}] * 2}, path="/v1/batches", key="k")
    assert as_json.headers["idempotent-replayed"] == "true"
    bad = client.http.post(
        "/v1/batches", content=f'{line}\n{{"kind":1}}\n{line}x\n', headers=headers | {"Idempotency-Key": "z"}
    )
    assert (bad.status_code, "/jobs/2" in bad.json()["detail"]) == (400, True)
    assert client.http.post("/v1/batches", content="\n", headers=headers).status_code == 422


def test_cancelling_takes_the_intent_along_and_may_be_repeated(client: Client, house: House) -> None:
    job = client.job()
    cancel = f"/v1/jobs/{job['id']}/cancel"
    for _ in range(2):
        answer = client.http.post(cancel)
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert rows(client)["intents"] == 0
    assert rows(client)["events"] == 2
    finished = client.job()
    finish(house, client, finished)
    refused = client.http.post(f"/v1/jobs/{finished['id']}/cancel")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/already-finished")
    running = client.job()
    client.database.admin.execute(
        "SELECT * FROM claim_jobs(%s, %s, ARRAY[1])", [uuid.uuid4(), [uuid.UUID(running["id"])]]
    )
    asked = client.http.post(f"/v1/jobs/{running['id']}/cancel")
    assert (asked.status_code, asked.json()["status"]) == (202, "processing")
    assert asked.json()["cancel_requested_at"] is not None


def test_a_preview_is_conditional_resumable_and_not_executable(client: Client, house: House) -> None:
    job = client.job()
    preview = job["links"]["preview"]
    early = client.http.get(preview)
    assert (early.status_code, early.json()["type"]) == (409, "/problems/not-ready")
    assert int(early.headers["retry-after"]) >= 1
    digest = finish(house, client, job)
    whole = client.http.get(preview)
    assert (whole.status_code, whole.content) == (200, PNG)
    assert whole.headers["content-type"] == "image/png"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.headers["content-disposition"] == f'inline; filename="{job["id"]}.png"'
    assert "sandbox" in whole.headers["content-security-policy"]
    etag = whole.headers["etag"]
    assert etag == f'"{digest}"'
    head = client.http.head(preview)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(PNG)))
    for header in (etag, f'W/{etag}, "x"', "*"):
        unchanged = client.http.get(preview, headers={"If-None-Match": header})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
    size = len(PNG)
    for header, expected in (
        ("bytes=0-9", PNG[:10]), ("bytes=1000-", PNG[1000:]), ("bytes=-5", PNG[-5:]),
        ("bytes=5-99999", PNG[5:]), ("bytes=-99999", PNG),
    ):  # fmt: skip
        part = client.http.get(preview, headers={"Range": header, "If-Range": etag})
        assert (header, part.status_code, part.content) == (header, 206, expected)
    for header in (
        "bytes=9-1",
        "lines=0-9",
        "bytes=a-b",
        "bytes=0-1,3-4",
        "bytes=" + "9" * 5000 + "-",
        "bytes=-",
    ):
        ignored = client.http.get(preview, headers={"Range": header})
        assert (ignored.status_code, ignored.content) == (200, PNG)
    # RFC 9110, 14.2: a range is for GET only.
    ranged = client.http.head(preview, headers={"Range": "bytes=0-9"})
    assert (ranged.status_code, ranged.headers["content-length"]) == (200, str(len(PNG)))
    other_version = client.http.get(preview, headers={"Range": "bytes=0-9", "If-Range": '"other"'})
    assert (other_version.status_code, other_version.content) == (200, PNG)
    for header in (f"bytes={size}-", "bytes=-0"):
        beyond = client.http.get(preview, headers={"Range": header})
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")


def test_a_preview_that_is_no_image_is_a_download_and_a_lost_one_is_503(client: Client, house: House) -> None:
    job = client.job()
    digest = finish(house, client, job, b"<script>alert(1)</script>")
    answer = client.http.get(job["links"]["preview"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    BlobStore(Path(house.processes.blobs)).path(digest).unlink()
    lost = client.http.get(job["links"]["preview"])
    assert (lost.status_code, lost.json()["type"]) == (503, "/problems/preview-missing")


def test_a_job_without_a_preview_says_so(client: Client) -> None:
    job = client.job()
    client.http.post(f"/v1/jobs/{job['id']}/cancel")
    answer = client.http.get(job["links"]["preview"])
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/no-preview")


def test_documents_are_known_by_their_bytes(client: Client, other: Client) -> None:
    first = client.http.put("/v1/documents", content=b"same")
    again = client.http.put("/v1/documents", content=b"same")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    resources.Document.model_validate(first.json())
    digest = first.json()["document"]
    assert client.http.get(f"/v1/documents/{digest}").json() == {"document": digest, "size": 4}
    assert other.http.get(f"/v1/documents/{digest}").status_code == 404
    announced = {"Content-Digest": "sha-256=:" + "A" * 43 + "=:"}
    wrong = client.http.put("/v1/documents", content=b"new", headers=announced)
    assert (wrong.status_code, wrong.json()["type"]) == (422, "/problems/digest-mismatch")
    broken = client.http.put("/v1/documents", content=b"new", headers={"Content-Digest": "sha-256=:x:"})
    assert broken.status_code == 422
    assert client.http.put("/v1/documents", content=b"").status_code == 201


def test_putting_a_document_again_mends_its_damaged_file(client: Client, house: House) -> None:
    store = BlobStore(house.processes.blobs)
    digest = client.put(b"to be damaged")
    store.path(digest).write_bytes(b"xx be damaged")
    assert client.put(b"to be damaged") == digest
    assert store.read(digest) == b"to be damaged"


def test_a_document_over_the_limit_is_413_and_leaves_nothing(client: Client, house: House) -> None:
    small = Client(
        house.database,
        house.processes.portal(ONCOMMIT_MAX_DOCUMENT_BYTES="1000").url,
        client.team,
        client.token,
    )
    assert small.http.put("/v1/documents", content=b"x" * 1000).status_code == 201
    for content in (b"x" * 1001, iter([b"x" * 600] * 2)):
        answer = small.http.put("/v1/documents", content=content)
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")
    assert list((Path(house.processes.blobs) / "incoming").iterdir()) == []


def test_many_teams_and_paths_make_no_new_series(client: Client) -> None:
    def series() -> int:
        return len(client.http.get("/metrics").text.splitlines())

    def ask(n: int) -> None:
        for i in range(20):
            client.http.get(f"/nowhere/{n}/{i}")
            client.http.request(f"ODD{n}", "/v1/jobs")
            client.http.get(f"/v1/jobs/{uuid.uuid4()}")

    ask(0)
    series()  # the first scrape counts itself
    before = series()
    threads = [threading.Thread(target=ask, args=[n]) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert series() == before
