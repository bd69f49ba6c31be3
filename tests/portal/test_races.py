"""Many at once: one job a key, over two processes, and nobody gets a 5xx."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from support.team import Client, House, rows

ROUNDS, PARALLEL = 30, 20
BATCHES, SIZE = 10, 50


async def _round(
    clients: Sequence[httpx.AsyncClient], path: str, body: Mapping[str, Any], key: str
) -> tuple[set[str], list[int]]:
    """Send identical requests at one moment; those told 409 ask again until they are answered."""
    gate = asyncio.Event()
    statuses: list[int] = []

    async def one(client: httpx.AsyncClient) -> str:
        await gate.wait()
        while True:
            answer = await client.post(path, json=body, headers={"Idempotency-Key": key})
            statuses.append(answer.status_code)
            if answer.status_code == 409:
                await asyncio.sleep(int(answer.headers["retry-after"]))
                continue
            assert answer.status_code == 202, answer.text
            return str(answer.json()["id"])

    tasks = [asyncio.create_task(one(clients[n % len(clients)])) for n in range(PARALLEL)]
    gate.set()
    return set(await asyncio.gather(*tasks)), statuses


def race(house: House, client: Client, path: str, body: Mapping[str, Any], rounds: int) -> set[int]:
    """Ask in rounds over two portals; each round is one job or batch. Return the statuses that were seen."""
    urls = [house.portal.url, house.processes.portal().url]

    async def scene() -> set[int]:
        seen: set[int] = set()
        headers = {"Authorization": f"Bearer {client.token}"}
        async with (
            httpx.AsyncClient(base_url=urls[0], headers=headers, timeout=20, trust_env=False) as one,
            httpx.AsyncClient(base_url=urls[1], headers=headers, timeout=20, trust_env=False) as two,
        ):
            for _ in range(rounds):
                ids, statuses = await _round([one, two], path, body, str(uuid.uuid4()))
                assert len(ids) == 1
                seen.update(statuses)
        return seen

    return asyncio.run(scene())


def test_identical_requests_at_one_moment_make_one_job(house: House, client: Client) -> None:
    body = {"document": client.put(), "kind": "page"}
    assert race(house, client, "/v1/jobs", body, ROUNDS) <= {202, 409}
    assert rows(client) == {
        "jobs": ROUNDS, "events": ROUNDS, "intents": ROUNDS, "requests": ROUNDS, "batches": 0,
    }  # fmt: skip


def test_identical_batches_at_one_moment_make_one_batch(house: House, client: Client) -> None:
    body = {"jobs": [{"document": client.put(), "kind": "page"}] * SIZE}
    # 503 is none of them: those who wait for their team's turn get it within the time of a busy key.
    assert race(house, client, "/v1/batches", body, BATCHES) <= {202, 409}
    jobs = BATCHES * SIZE
    assert rows(client) == {
        "jobs": jobs, "events": jobs, "intents": jobs, "requests": BATCHES, "batches": BATCHES,
    }  # fmt: skip
