"""Races: identical requests at one moment, over two portal processes of the embedded stack.

`python -m benchmarks.races [--rounds 100] [--parallel 50]`; exit 1 unless each key made one job, that job
was told to everybody, and nobody got a 5xx.
"""

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from ops.stack import Stack, StackPlan

ROUNDS, PARALLEL = 100, 50
PORTALS = 2
#: Longer than the portal takes for its own 503, so that what is slow is told by the portal and not by us.
ANSWER_SECONDS = 30.0
CONTENT = b"# Many want this at one moment\n"
#: Answers that say: the same request again, later.
AGAIN = frozenset({409, 429})


@dataclass(slots=True)
class Seen:
    """What was seen.

    Attributes:
        jobs: ids by key; makers: answers by key that were no replay.
        answers: how many of each; requests, rounds: how long each took, seconds.

    """

    jobs: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    makers: Counter[str] = field(default_factory=Counter[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    requests: list[float] = field(default_factory=list[float])
    rounds: list[float] = field(default_factory=list[float])
    listed: int = 0

    def faults(self, rounds: int) -> list[str]:
        """Return what is not as it has to be."""
        found = [f"{told}: {count}" for told, count in self.answers.items() if told[0] not in "24"]
        found += [f"{key}: {len(ids)} jobs" for key, ids in self.jobs.items() if len(ids) != 1]
        found += [f"{key}: made {self.makers[key]} times" for key in self.jobs if self.makers[key] != 1]
        if len(self.jobs) != rounds or self.listed != rounds:
            found.append(f"{rounds} keys made {len(self.jobs)} jobs, {self.listed} are listed")
        return found


async def race(portals: Sequence[httpx.AsyncClient], rounds: int, parallel: int) -> Seen:
    """Send `parallel` identical requests at a time, `rounds` times; each asks again until it has its job."""
    seen = Seen()
    put = await portals[0].put("/v1/documents", content=CONTENT)
    document = put.raise_for_status().json()["document"]

    async def one(portal: httpx.AsyncClient, key: str, gate: asyncio.Event) -> None:
        await gate.wait()
        while True:
            started = time.perf_counter()
            try:
                answer = await portal.post(
                    "/v1/jobs",
                    json={"document": document, "kind": "page"},
                    headers={"Idempotency-Key": key},
                )
            except httpx.HTTPError as error:
                seen.answers[f"no answer ({type(error).__name__})"] += 1
                return
            seen.requests.append(time.perf_counter() - started)
            replayed = "idempotent-replayed" in answer.headers
            seen.answers[f"{answer.status_code}{' replayed' if replayed else ''}"] += 1
            if answer.status_code in AGAIN:
                await asyncio.sleep(float(answer.headers["retry-after"]))
                continue
            if answer.is_success:
                seen.jobs.setdefault(key, set()).add(answer.json()["id"])
                seen.makers[key] += not replayed
            return

    for _ in range(rounds):
        key, gate = str(uuid.uuid4()), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(parallel):
                group.create_task(one(portals[n % len(portals)], key, gate))
            started = time.perf_counter()
            gate.set()
        seen.rounds.append(time.perf_counter() - started)
    seen.listed = await _listed(portals[-1])
    return seen


async def _listed(portal: httpx.AsyncClient) -> int:
    count, query = 0, {"limit": "100"}
    while True:
        page = (await portal.get("/v1/jobs", params=query)).raise_for_status().json()
        count += len(page["jobs"])
        if page["next"] is None:
            return count
        query["cursor"] = page["next"]


async def _measured(stack: Stack, rounds: int, parallel: int) -> Seen:
    headers = {"Authorization": f"Bearer {stack.token}"}
    limits = httpx.Limits(max_connections=parallel)
    portals = [
        httpx.AsyncClient(
            base_url=url, headers=headers, timeout=ANSWER_SECONDS, limits=limits, trust_env=False
        )
        for url in stack.portals
    ]
    try:
        return await race(portals, rounds, parallel)
    finally:
        for portal in portals:
            await portal.aclose()


def table(seen: Seen, rounds: int, parallel: int) -> Table:
    """Return what was seen, for humans."""
    machine = f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    found = Table("what", "seen", title=f"{rounds} rounds x {parallel} identical requests, {machine}")
    single = sum(len(ids) == 1 for ids in seen.jobs.values())
    found.add_row("keys with exactly one job", f"{single} of {rounds}")
    found.add_row("jobs that GET /v1/jobs lists", str(seen.listed))
    for told, count in sorted(seen.answers.items()):
        found.add_row(f"answered {told}", str(count))
    found.add_row(
        "answered 5xx, or not", str(sum(n for told, n in seen.answers.items() if told[0] not in "24"))
    )
    for name, seconds in (("a request", seen.requests), ("a round", seen.rounds)):
        cuts = statistics.quantiles(seconds, n=100)
        found.add_row(f"{name}: median, p99, max", f"{cuts[49]:.3f}, {cuts[98]:.3f}, {max(seconds):.3f} s")
    return found


def main() -> int:
    """Race; return 0 when every key made one job and nobody got a 5xx."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.races", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 2")
    parser.add_argument("--parallel", type=int, default=PARALLEL)
    given = parser.parse_args()
    # A pipe has no width: a table that is cut to one made up for it would lose words.
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="oncommit-races-") as folder:
        Path(folder).chmod(0o711)  # the servers' account enters it
        plan = StackPlan(home=Path(folder, "home"), portals=PORTALS)
        with Stack(plan, say=lambda text: console.print(text, style="dim")) as stack:
            seen = asyncio.run(_measured(stack, given.rounds, given.parallel))
    console.print(table(seen, given.rounds, given.parallel))
    faults = seen.faults(given.rounds)
    for fault in faults:
        console.print(f"NOT as it has to be: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
