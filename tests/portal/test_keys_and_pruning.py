"""A key lives as long as its job: repeated over the job's whole life, and at the moment that both go."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from db import keeping, oversight, reads, replay
from portal.app import create, doored
from portal.idempotency import BUSY_SECONDS
from runtime.settings import Settings
from support.dead import die
from support.postgres import Database
from support.team import Client, House, rows

WHO = {"who": "operator:eve", "reason": "over"}
WRITTEN = """
SELECT (SELECT count(*) FROM job_events), (SELECT count(*) FROM requests), (SELECT count(*) FROM jobs),
       (SELECT count(*) FROM outbox), (SELECT max(id) FROM outbox)
"""
CANCEL = "SELECT cancel_job(team, id, 'test', 'over') FROM jobs WHERE team = %s"
Reading = Callable[..., Awaitable[Any]]


def prune(database: Database, *, dead_too: bool = False) -> None:
    """Delete all that ended."""
    _, _, before = oversight.prunable(database.admin, timedelta(0), dead_too=dead_too)
    for _ in keeping.prune(database.admin, before, dead_too=dead_too, **WHO):
        pass


def claim(client: Client, job: uuid.UUID, dispatch: int) -> uuid.UUID:
    """Claim the job as a worker would, and return who that is."""
    worker = uuid.uuid4()
    client.database.admin.execute(
        "SELECT * FROM claim_jobs(%s, %s, %s)", [worker, [job], [dispatch]]
    ).fetchall()
    return worker


def test_a_key_is_its_jobs_for_the_jobs_whole_life_and_free_afterwards(client: Client) -> None:
    admin = client.database.admin
    body = {"document": client.put(), "kind": "page"}
    first = client.post(body, key="k")
    job = uuid.UUID(first.json()["id"])

    def again(status: str) -> None:
        before = admin.execute(WRITTEN).fetchone()
        answer = client.post(body, key="k")
        assert (answer.status_code, answer.headers.get("idempotent-replayed")) == (202, "true")
        assert (answer.json()["id"], answer.json()["status"]) == (str(job), status)
        assert answer.headers["location"] == first.headers["location"]
        assert admin.execute(WRITTEN).fetchone() == before

    again("queued")
    die(admin, [job])
    again("dead")
    prune(client.database)
    again("dead")  # kept, unless an operator says that the dead go, too
    assert replay.replay(admin, [job], **WHO) == {job: "replayed"}
    again("queued")
    worker = claim(client, job, 2)
    again("processing")
    row = admin.execute("SELECT attempt FROM jobs WHERE id = %s", [job]).fetchone()
    assert row is not None
    admin.execute(
        "SELECT * FROM finish_jobs(%s, %s, ARRAY[2], %s, %s, ARRAY[1]::bigint[])",
        [worker, [job], [row[0]], ["sha256:" + "0" * 64]],
    ).fetchall()
    again("succeeded")
    prune(client.database)
    anew = client.post(body, key="k")
    assert (anew.status_code, anew.headers.get("idempotent-replayed")) == (202, None)
    assert anew.json()["id"] != str(job)
    assert rows(client) == {"jobs": 1, "events": 1, "intents": 1, "requests": 1, "batches": 0}


def exchange(house: House, folder: Path, client: Client, path: str, body: Any) -> httpx.Response:
    """POST under the key `k` to a portal that runs in this process."""

    async def scene() -> httpx.Response:
        url = SecretStr(house.database.url("portal"))
        app = create(Settings(database_url=url, blobs=folder))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(doored(app)), base_url="http://here") as http,
        ):
            headers = {"Authorization": f"Bearer {client.token}", "Idempotency-Key": "k"}
            return await http.post(path, json=body, headers=headers, timeout=30)

    return asyncio.run(scene())


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches"])
def test_a_job_that_is_pruned_between_its_keys_decision_and_the_reading_of_its_row_is_made_anew(
    client: Client, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    read = "job" if path == "/v1/jobs" else "batches"
    one = {"document": client.put(), "kind": "page"}
    body = one if read == "job" else {"jobs": [one, one]}
    first = client.post(body, path=path, key="k").json()["id"]
    client.database.admin.execute(CANCEL, [client.team]).fetchall()
    really: Reading = getattr(reads, read)
    seen: list[bool] = []

    async def after_pruning(*args: Any, **kwargs: Any) -> Any:
        await asyncio.to_thread(prune, house.database)
        found = await really(*args, **kwargs)
        seen.append(bool(found))
        return found

    monkeypatch.setattr(reads, read, after_pruning)
    answer = exchange(house, tmp_path, client, path, body)
    assert (answer.status_code, answer.headers.get("idempotent-replayed")) == (202, None), answer.text
    assert seen[0] is False, "the row was gone when it was read"
    assert answer.json()["id"] != first
    assert rows(client)["requests"] == 1


def test_a_row_that_is_never_there_is_409_in_bounded_time(
    client: Client, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"document": client.put(), "kind": "page"}
    assert client.post(body, key="k").status_code == 202
    looks: list[float] = []

    async def nothing(*_: Any) -> None:
        looks.append(asyncio.get_running_loop().time())

    monkeypatch.setattr(reads, "job", nothing)
    answer = exchange(house, tmp_path, client, "/v1/jobs", body)
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/key-busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert len(looks) > 1
    assert looks[-1] - looks[0] < 2 * BUSY_SECONDS
