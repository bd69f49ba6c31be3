"""Event streams: news as they come, from where the client was, to the end."""

import asyncio
import contextlib
import json
import resource
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from db.reads import BatchRow
from ops.ports import free_port
from portal.streams import Hub
from runtime.blobs import BlobStore
from support.team import Client, House
from support.waiting import eventually

SSE = {"Accept": "text/event-stream"}


def parsed(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield events of a stream; comments are left out."""
    event: dict[str, Any] = {}
    for line in answer.iter_lines():
        if not line and "event" in event:
            yield {**event, "data": json.loads(event["data"])}
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def finish(house: House, job: dict[str, Any]) -> None:
    digest = BlobStore(Path(house.processes.blobs)).put_bytes(b"x")
    admin, worker, ids = house.database.admin, uuid.uuid4(), [uuid.UUID(job["id"])]
    admin.execute("SELECT * FROM claim_jobs(%s, %s, ARRAY[1])", [worker, ids])
    admin.execute(
        "SELECT * FROM finish_jobs(%s, %s, ARRAY[1], ARRAY[1], %s, ARRAY[1]::bigint[])",
        [worker, ids, [digest]],
    )


def test_a_stream_shows_each_event_once_and_ends_after_the_last(client: Client, house: House) -> None:
    job = client.job()
    with client.http.stream("GET", job["links"]["events"], headers=SSE) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = parsed(answer)
        first = next(events)
        assert (first["id"], first["event"], first["data"]["seq"]) == ("1", "accepted", 1)
        finish(house, job)
        assert [(e["id"], e["event"]) for e in events] == [("2", "claimed"), ("3", "succeeded")]
    with client.http.stream("GET", job["links"]["events"], headers={**SSE, "Last-Event-ID": "2"}) as answer:
        assert [e["id"] for e in parsed(answer)] == ["3"]
    ended = client.http.get(job["links"]["events"], headers={**SSE, "Last-Event-ID": "3"})
    assert ended.status_code == 204


@pytest.mark.parametrize("last", ["x", "-1", "1e3", "9" * 30, "2147483648", ""])
def test_a_last_event_id_that_cannot_be_is_422(client: Client, last: str) -> None:
    job = client.job()
    answer = client.http.get(job["links"]["events"], headers={**SSE, "Last-Event-ID": last})
    assert answer.status_code == 422


def test_a_batch_stream_shows_progress_and_the_end(client: Client, house: House) -> None:
    one = {"document": client.put(), "kind": "page"}
    batch = client.post({"jobs": [one] * 3}, path="/v1/batches").json()
    jobs = client.http.get(batch["links"]["jobs"]).json()["jobs"]
    with client.http.stream("GET", batch["links"]["events"], headers=SSE) as answer:
        events = parsed(answer)
        first = next(events)
        assert (first["event"], first["id"], first["data"]["counts"]["queued"]) == ("progress", "3", 3)
        for job in jobs:
            finish(house, job)
        last = list(events)[-1]
    assert (last["event"], last["id"], last["data"]["finished"]) == ("finished", "9", True)
    ended = client.http.get(batch["links"]["events"], headers={**SSE, "Last-Event-ID": "9"})
    assert ended.status_code == 204
    assert client.http.get(batch["links"]["events"]).json()["counts"]["succeeded"] == 3


def test_a_revoked_token_ends_the_streams_that_it_opened(client: Client) -> None:
    job = client.job()
    with client.http.stream("GET", job["links"]["events"], headers=SSE) as answer:
        events = parsed(answer)
        assert next(events)["event"] == "accepted"
        client.database.admin.execute("UPDATE tokens SET revoked_at = now() WHERE team = %s", [client.team])
        assert list(events) == []


def test_streams_that_clients_left_are_forgotten(client: Client, house: House) -> None:
    job = client.job()
    with client.http.stream("GET", job["links"]["events"], headers=SSE) as answer:
        events = parsed(answer)
        next(events)
        assert "open_streams 1.0" in house.portal.page("/metrics")
    eventually(lambda: "open_streams 0.0" in house.portal.page("/metrics"))


def test_three_hundred_streams_of_one_job_all_see_its_end(client: Client, house: House) -> None:
    job = client.job()
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {client.token}", **SSE}
    with httpx.Client(
        base_url=client.url, headers=headers, limits=limits, trust_env=False, timeout=30
    ) as many:
        answers = [
            many.send(many.build_request("GET", job["links"]["events"]), stream=True) for _ in range(300)
        ]
        streams = [parsed(answer) for answer in answers]
        assert all(next(events)["event"] == "accepted" for events in streams)
        finish(house, job)
        assert all([e["event"] for e in events] == ["claimed", "succeeded"] for events in streams)
        for answer in answers:
            answer.close()


class CountingDatabase:
    """Counts questions; every token is in force, and nothing is new."""

    def __init__(self) -> None:
        self.questions = 0

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        self.questions += 1
        closure = {
            name: cell.cell_contents
            for name, cell in zip(work.__code__.co_freevars, work.__closure__ or (), strict=True)
        }  # type: ignore[attr-defined]
        return set(closure["shown"]) if "shown" in closure else {} if "cursors" in closure else []


def test_a_thousand_streams_are_one_question_a_tick() -> None:
    """And one more each second for their tokens, and one for all batches."""

    async def scene() -> list[int]:
        database = CountingDatabase()
        hub = Hub(cast("Any", database))
        with contextlib.ExitStack() as stack:
            for n in range(1000):
                kind: Any = "batch" if n % 2 else "job"
                stack.enter_context(hub.watch(kind, uuid.uuid4(), 0, uuid.uuid4()))
            found: list[int] = []
            for _ in range(3):
                before = database.questions
                await hub._tick()
                found.append(database.questions - before)
        return found

    assert asyncio.run(scene()) == [3, 1, 1]


def test_a_batch_row_knows_when_it_is_finished() -> None:
    row = BatchRow(uuid.uuid4(), "t", 2, None, {"succeeded": 1, "dead": 1}, 6)  # type: ignore[arg-type]
    assert row.finished


def test_the_files_that_many_streams_need_are_taken(house: House) -> None:
    """A soft limit below the number of streams would let nobody in, probes included."""
    limited = ["sh", "-c", 'ulimit -Sn 256; exec "$0" -m portal', sys.executable]
    given = house.processes.environment("portal", {"ONCOMMIT_PORT": str(free_port())})
    portal = house.processes.start("limited", limited, given).wait_ready()
    soft, hard = resource.prlimit(portal.pid, resource.RLIMIT_NOFILE)
    assert soft == hard > 256


def test_a_silent_stream_is_kept_by_comments(client: Client, house: House) -> None:
    """A portal whose heart beats faster; nothing happens to the job meanwhile."""
    impatient = "import sys, portal.event_routes as e; e.HEARTBEAT_SECONDS = 0.2\n"
    argv = [sys.executable, "-c", impatient + "from portal.__main__ import main; sys.exit(main())"]
    given = house.processes.environment("portal", {"ONCOMMIT_PORT": str(free_port())})
    url = house.processes.start("impatient", argv, given).wait_ready().url
    job = client.job()
    with client.http.stream("GET", url + job["links"]["events"], headers=SSE) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("id:")) == "id: 1"
        comments = [next(line for line in lines if line.startswith((":", "id:"))) for _ in range(3)]
        assert comments == [":"] * 3
        finish(house, job)
        assert "event: succeeded" in list(lines)
