"""Numbers across processes: each tells its own, none falls while it lives, and the sum is the database's."""

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from support.kinds import kinds
from support.postgres import Database
from support.processes import Processes, Running
from support.team import Client, House
from support.waiting import eventually

JOBS, ROUNDS = 20, 2
GAUGES_AT_REST = ("renders_running", "due_intents", "lane_waiting", "lane_running", "open_streams")
ENDED = "SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL"
ATTEMPTS = "SELECT count(*) FROM job_events WHERE type = 'claimed'"

Sample = tuple[str, tuple[tuple[str, str], ...]]


def scrape(url: str) -> dict[Sample, float]:
    """Return every counter of a page, and the gauges that are 0 at rest."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310 -- ours
        families = parse(answer.read().decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
            if family.type == "counter" or family.name in GAUGES_AT_REST
        }


class Fleet:
    """Two portals, a relay, and one Dramatiq process with two worker processes."""

    def __init__(self, processes: Processes, database: Database) -> None:
        self.processes, self.database = processes, database
        self.portals = [processes.portal(), processes.portal()]
        self.relay = processes.relay()
        self.folder = processes.folder
        self.worker = self._worker()
        self.last: dict[str, dict[Sample, float]] = {}
        self.gone: list[dict[Sample, float]] = []  # what processes said last before they ended

    def _worker(self) -> Running:
        health = {"ONCOMMIT_HEALTH_FILE": str(self.folder / "workers.url"), "ONCOMMIT_LOG_LEVEL": "info"}
        argv = [sys.executable, "-m", "dramatiq", "actors:setup", "-p", "2", "-t", "2"]
        started = self.processes.start("workers", argv, self.processes.environment("worker", health))
        eventually(lambda: len(self.worker_pages(started)) == 2, timeout=60, describe=started.log_text)
        return started

    def worker_pages(self, worker: Running) -> list[str]:
        """Return where the worker processes that were started last say they are, by their logs."""
        lines = [line for line in worker.log_lines() if "health" in line]
        return [str(line["health"]).rstrip("/") for line in lines][-2:]

    def pages(self) -> list[str]:
        return [*(p.url for p in self.portals), self.relay.url, *self.worker_pages(self.worker)]

    def look(self) -> None:
        """Scrape all; no counter falls."""
        for url in self.pages():
            now = scrape(url)
            for sample, value in self.last.get(url, {}).items():
                if sample[0].endswith("_total"):
                    assert now[sample] >= value, f"{url}: {sample} fell from {value} to {now[sample]}"
            self.last[url] = now

    def restart(self, process: Running, urls: list[str]) -> None:
        """End a process and start it again; what it told last still counts."""
        self.gone += [self.last.pop(url) for url in urls]
        process.kill()
        process.wait_ended()

    def total(self, name: str) -> float:
        return sum(
            value
            for told in [*self.last.values(), *self.gone]
            for (sample, _), value in told.items()
            if sample == name
        )


@pytest.fixture
def fleet(processes: Processes, database: Database) -> Iterator[Fleet]:
    return Fleet(processes, database)


def ended(database: Database, count: int) -> bool:
    return database.admin.execute(ENDED).fetchone() == (count,)


def files(folder: Path) -> set[str]:
    """Return the files of the processes but for logs and documents."""
    found = (path for path in folder.rglob("*") if path.is_file() and "blobs" not in path.parts)
    return {path.name for path in found if path.suffix not in {".log", ".jsonl"}}


@pytest.mark.timeout(420)  # eight process starts, each with its imports
@pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
def test_counters_never_fall_and_their_sum_is_the_databases_through_restarts(
    fleet: Fleet, database: Database
) -> None:
    clients = [House(database, portal, fleet.processes).client() for portal in fleet.portals]
    fleet.look()
    before: set[str] = set()
    for round_ in range(1, ROUNDS + 1):
        send(fleet, clients)
        eventually(lambda n=round_: ended(database, n * JOBS), timeout=120)  # type: ignore[misc]
        eventually(lambda: attempts_told(fleet, database), timeout=40)
        assert fleet.total("jobs_accepted_total") == round_ * JOBS
        eventually(lambda: at_rest(fleet), timeout=40)
        if round_ < ROUNDS:
            for portal in fleet.portals:
                fleet.restart(portal, [portal.url])
                portal.restart().wait_ready()
            fleet.restart(fleet.relay, [fleet.relay.url])
            fleet.relay.restart().wait_ready()
            fleet.restart(fleet.worker, fleet.worker_pages(fleet.worker))
            fleet.worker = fleet._worker()
        before = before or files(fleet.folder)
        assert files(fleet.folder) == before


def send(fleet: Fleet, clients: list[Client]) -> None:
    """Send jobs by both portals, and look at every page while they are worked on."""
    for n in range(JOBS):
        client = clients[n % 2]
        body = {"document": client.put(), "kind": "thumbnail", "simulate": {"fail_first": int(n % 10 == 0)}}
        assert client.post(body).status_code == 202
        if n % 5 == 0:
            fleet.look()


def attempts_told(fleet: Fleet, database: Database) -> bool:
    fleet.look()
    return database.admin.execute(ATTEMPTS).fetchone() == (fleet.total("attempts_total"),)


def at_rest(fleet: Fleet) -> bool:
    fleet.look()
    shown = [(name, value) for told in fleet.last.values() for (name, _), value in told.items()]
    return not any(value for name, value in shown if name in GAUGES_AT_REST)
