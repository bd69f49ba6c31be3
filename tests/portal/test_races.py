"""Many at once: one job a key, over two processes, and nobody gets a 5xx."""

import asyncio
import uuid
from collections.abc import Sequence

import httpx

from support.team import Client, House, rows

ROUNDS, PARALLEL = 30, 20


async def _round(clients: Sequence[httpx.AsyncClient], digest: str, key: str) -> tuple[set[str], list[int]]:
    """Send identical requests at one moment; those told 409 ask again until they are answered."""
    gate = asyncio.Event()
    statuses: list[int] = []

    async def one(client: httpx.AsyncClient) -> str:
        await gate.wait()
        while True:
            answer = await client.post(
                "/v1/jobs", json={"document": digest, "kind": "page"}, headers={"Idempotency-Key": key}
            )
            statuses.append(answer.status_code)
            if answer.status_code == 409:
                await asyncio.sleep(int(answer.headers["retry-after"]))
                continue
            assert answer.status_code == 202, answer.text
            return str(answer.json()["id"])

    tasks = [asyncio.create_task(one(clients[n % len(clients)])) for n in range(PARALLEL)]
    gate.set()
    return set(await asyncio.gather(*tasks)), statuses


def test_identical_requests_at_one_moment_make_one_job(house: House, client: Client) -> None:
    urls = [house.portal.url, house.processes.portal().url]
    digest = client.put()

    async def scene() -> list[int]:
        seen: list[int] = []
        headers = {"Authorization": f"Bearer {client.token}"}
        async with (
            httpx.AsyncClient(base_url=urls[0], headers=headers, timeout=20, trust_env=False) as one,
            httpx.AsyncClient(base_url=urls[1], headers=headers, timeout=20, trust_env=False) as two,
        ):
            for _ in range(ROUNDS):
                ids, statuses = await _round([one, two], digest, str(uuid.uuid4()))
                assert len(ids) == 1
                seen += statuses
        return seen

    statuses = asyncio.run(scene())
    assert set(statuses) <= {202, 409}
    assert rows(client) == {
        "jobs": ROUNDS, "events": ROUNDS, "intents": ROUNDS, "requests": ROUNDS, "batches": 0,
    }  # fmt: skip
