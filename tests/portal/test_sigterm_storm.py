"""A portal stopped again and again under traffic: what was taken is answered, or its retry finds out."""

import asyncio
import itertools
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest

from support.kinds import kinds
from support.postgres import Database
from support.processes import Processes, Running
from support.proxy import Proxies, Proxy
from support.team import Client, rows, token_for
from support.waiting import eventually

#: Portals that are stopped, each in its own time, and how often; one more stays.
STORMED, ROUNDS = 5, 4
STOPS = STORMED * ROUNDS
#: Of each portal's four stops, the one with the database's replies held until it has been told to stop; and
#: the one with them held for longer than its grace.
HELD, OUTLASTED = 2, 0
GRACE_SECONDS = 1
PER_SECOND = 20
ANSWER_SECONDS = 15.0
PAUSE_SECONDS = 0.1
ROWS = """
SELECT r.key, r.job::text FROM requests r
  JOIN jobs j ON j.id = r.job
  JOIN outbox o ON o.message_id = j.team || '|' || j.id || '.1'
 WHERE r.team = %s
"""


@dataclass
class Clients:
    """Send unique keys at a steady rate to the stormed portals in turn, and retry at the one that stays.

    `jobs` are the ids that each key was answered, `answers` what came in all, `waiting` how many requests are
    on their way to each portal.
    """

    stormed: list[str]
    staying: str
    token: str
    digest: str
    jobs: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    answers: Counter[str] = field(default_factory=Counter[str])
    waiting: Counter[str] = field(default_factory=Counter[str])
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            httpx.AsyncClient(headers=headers, timeout=ANSWER_SECONDS, trust_env=False) as http,
            asyncio.TaskGroup() as group,
        ):
            for n in itertools.count():
                if self.done.is_set():
                    return
                group.create_task(self._one(http, f"k{n}", self.stormed[n % len(self.stormed)]))
                await asyncio.sleep(1 / PER_SECOND)

    async def _one(self, http: httpx.AsyncClient, key: str, first: str) -> None:
        """Ask until there is a job; the second time and from then on, the other portal."""
        found = self.jobs.setdefault(key, set())
        for url in itertools.chain([first], itertools.repeat(self.staying)):
            told = await self._ask(http, url, key, found)
            self.answers[told] += 1
            if told == "202":
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, http: httpx.AsyncClient, url: str, key: str, found: set[str]) -> str:
        self.waiting[url] += 1
        try:
            answer = await http.post(
                f"{url}/v1/jobs",
                json={"document": self.digest, "kind": "page"},
                headers={"Idempotency-Key": key},
            )
        except httpx.TransportError as error:
            return type(error).__name__
        finally:
            self.waiting[url] -= 1
        if answer.status_code == 202:
            found.add(answer.json()["id"])
        return str(answer.status_code)


def _stop(portal: Running, proxy: Proxy, clients: Clients, n: int) -> int:
    """Send SIGTERM as the n-th stop has it, and return the code with which it ended."""
    if n % 4 in {HELD, OUTLASTED}:
        proxy.blackhole()
        eventually(lambda: clients.waiting[portal.url] >= 2, describe="requests wait for the database")
    portal.signal(signal.SIGTERM)
    if n % 4 == HELD:
        portal.wait_log("Shutting down")
        proxy.restore()
    code = portal.wait_ended()
    proxy.restore()
    return code


def _stop_often(place: int, portal: Running, proxy: Proxy, clients: Clients) -> list[int]:
    """Stop this portal and start it again, `ROUNDS` times; return the codes with which it ended."""
    codes: list[int] = []
    for n in range(place, place + ROUNDS):  # each portal begins with another kind of stop
        portal.wait_ready()
        codes.append(_stop(portal, proxy, clients, n))
        portal.restart()
    return codes


@pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
def test_twenty_stops_under_traffic_make_one_job_a_key_and_no_202_without_rows(
    database: Database, processes: Processes, proxies: Proxies
) -> None:
    """Each 202 names the one job of its key, and the key, the job and its intent are in the tables."""
    links = [proxies.to(database.server.port) for _ in range(STORMED)]
    stormed = [
        processes.portal(
            ready=False,
            ONCOMMIT_DATABASE_URL=database.url("portal", link.port),
            ONCOMMIT_SHUTDOWN_GRACE_SECONDS=str(GRACE_SECONDS),
        )
        for link in links
    ]
    staying = processes.portal()
    for portal in stormed:
        portal.wait_ready()
    token, _ = token_for(database, "blue")
    client = Client(database, staying.url, "blue", token)
    clients = Clients([portal.url for portal in stormed], staying.url, token, client.put())
    traffic = threading.Thread(target=clients.run)
    traffic.start()
    try:
        with ThreadPoolExecutor(STORMED) as storm:
            stops = storm.map(_stop_often, range(STORMED), stormed, links, [clients] * STORMED)
            codes = list(itertools.chain.from_iterable(stops))
    finally:
        clients.done.set()
        traffic.join(60)
    assert not traffic.is_alive()
    assert codes == [0] * STOPS
    assert set(clients.answers) <= {
        "202", "409", "503", "ConnectError", "ReadError", "RemoteProtocolError",
    }, clients.answers  # fmt: skip
    assert clients.answers["503"] + clients.answers["ReadError"] > 0, "no stop met a request"
    assert {key: list(ids) for key, ids in clients.jobs.items() if len(ids) != 1} == {}
    told = {key: next(iter(ids)) for key, ids in clients.jobs.items()}
    assert dict(database.admin.execute(ROWS, ["blue"]).fetchall()) == told
    assert rows(client) == {
        "jobs": len(told), "events": len(told), "intents": len(told), "requests": len(told), "batches": 0,
    }  # fmt: skip
    client.http.close()
