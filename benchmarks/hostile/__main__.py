"""`python -m benchmarks.hostile`: send everything, print the table.

Exit 1 when an answer is another than it has to be, the portal was started again, its memory grew beyond its
bound, or another team waited too long.
"""

import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import loads
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from db.operate import TokenOrder, create_team, new_token, store_token
from ops.stack import Stack, StackPlan
from portal.asked import MAX_BATCH_BYTES
from portal.problems import KINDS
from support.hostile import KEY, REQUESTS, SLOW, TYPE, Hostile, flood_of_lists
from support.raw_http import exchange, request_head

#: What may be added to the portal's memory, bytes, and how long 99 of 100 requests of another team may take.
MEMORY_BYTES = 100_000_000 + 2 * MAX_BATCH_BYTES
OTHERS_SECONDS = 1.0
FLOOD = 20  # of each kind, at one moment
LOOK_SECONDS = 0.02
OTHER = "other"


@dataclass(slots=True)
class Watched:
    """The portal's memory in bytes, and what another team waited in seconds; `failed` of its requests."""

    before: int
    peak: int
    after: int = 0
    waits: list[float] = field(default_factory=list[float])
    failed: Counter[str] = field(default_factory=Counter[str])

    @property
    def p99(self) -> float:
        """What 99 of 100 requests of the other team took at most, seconds."""
        return statistics.quantiles(self.waits, n=100)[98]


@dataclass(frozen=True, slots=True)
class Answered:
    """A hostile request, and what was answered in how many seconds."""

    row: Hostile
    status: int
    slug: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether it was answered as it has to be."""
        return (self.status, self.slug) == (KINDS[self.row.slug].status, self.row.slug)


@contextmanager
def watched(stack: Stack, token: str) -> Iterator[Watched]:
    """Look at the portal's memory, and ask it in another team's name, until the block ends."""
    process = psutil.Process(stack.pids()["portal-1"])
    found = Watched(process.memory_info().rss, process.memory_info().rss)
    done = threading.Event()

    def look() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=stack.portals[0], headers=headers, timeout=30, trust_env=False) as other:
            while not done.wait(LOOK_SECONDS):
                started = time.perf_counter()
                try:
                    answer = other.get("/v1/jobs")
                except httpx.HTTPError as error:
                    found.failed[type(error).__name__] += 1
                    continue
                found.waits.append(time.perf_counter() - started)
                if not answer.is_success:
                    found.failed[str(answer.status_code)] += 1

    def weigh() -> None:
        while not done.wait(LOOK_SECONDS):
            found.peak = max(found.peak, process.memory_info().rss)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(look), pool.submit(weigh)]
        try:
            yield found
        finally:
            done.set()
            for one in both:
                one.result()
    found.after = process.memory_info().rss


def _ask(url: str, token: str, digest: str, row: Hostile) -> Answered:
    started = time.perf_counter()
    status, _, body = exchange(url, row.request(token, digest))
    slug = loads(body)["type"].removeprefix("/problems/") if body else "no answer"
    return Answered(row, status, slug, time.perf_counter() - started)


def _flood(url: str, token: str) -> Counter[int]:
    """Send 20 x 10 MB without a token and 20 batches that would make much of memory, all at one moment."""
    requests = [
        request_head("PUT", "/v1/documents", None, [], b"x" * 10_000_000),
        request_head("POST", "/v1/batches", token, [KEY, TYPE], flood_of_lists()),
    ] * FLOOD
    with ThreadPoolExecutor(len(requests)) as pool:
        return Counter(status for status, _, _ in pool.map(lambda one: exchange(url, one), requests))


def _table(answers: list[Answered]) -> Table:
    found = Table("hostile input", "answer", "ms", "")
    for one in answers:
        wrong = "" if one.right else f"NOT {KINDS[one.row.slug].status} {one.row.slug}"
        found.add_row(one.row.name[:70], f"{one.status} {one.slug}", f"{one.seconds * 1000:.0f}", wrong)
    return found


def _faults(answers: list[Answered], flood: Counter[int], seen: Watched, *, same: bool) -> Iterator[str]:
    yield from (f"{one.row.name}: {one.status} {one.slug}" for one in answers if not one.right)
    if flood[401] != FLOOD or not set(flood) <= {401, 422, 503}:
        yield f"the flood was answered {dict(flood)}"
    if seen.peak - seen.before > MEMORY_BYTES:
        yield f"memory grew by more than {MEMORY_BYTES / 1e6:.0f} MB"
    if seen.p99 > OTHERS_SECONDS or seen.failed:
        yield f"another team waited {seen.p99:.2f} s (p99), and lost {dict(seen.failed)}"
    if not same:
        yield "the portal is another process"


def main() -> int:
    """Send everything, print the table; return 0 when all is as it has to be."""
    # A pipe has no width: a table that is cut to one made up for it would lose words.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
    with tempfile.TemporaryDirectory(prefix="oncommit-hostile-") as folder:
        Path(folder).chmod(0o711)  # the servers' account enters it
        with Stack(StackPlan(home=Path(folder, "home"))) as stack:
            operator, token, other, url = (
                stack.reach.parts["operator"],
                stack.token,
                new_token(),
                stack.portals[0],
            )
            create_team(operator, OTHER, who="hostile")
            store_token(operator, other, TokenOrder(OTHER, label="hostile"), who="hostile")
            pids = stack.pids()
            put = exchange(url, request_head("PUT", "/v1/documents", token, [], b"hello"))
            digest = loads(put[2])["document"]
            with watched(stack, other) as seen:
                answers = [_ask(url, token, digest, row) for row in REQUESTS]
                with ThreadPoolExecutor(len(SLOW)) as pool:
                    answers += pool.map(lambda row: _ask(url, token, digest, row), SLOW)
                flood = _flood(url, token)
            stack.tend()
            faults = list(_faults(answers, flood, seen, same=stack.pids() == pids))
    console.print(_table(answers))
    console.print(
        f"{len(answers)} requests one by one, then {sum(flood.values())} at one moment: {dict(flood)}"
    )
    memory = f"before {seen.before / 1e6:.0f}, highest {seen.peak / 1e6:.0f}, after {seen.after / 1e6:.0f} MB"
    console.print(f"the portal's memory: {memory}; it may grow by {MEMORY_BYTES / 1e6:.0f} MB")
    waits = f"median {statistics.median(seen.waits):.3f}, p99 {seen.p99:.3f}, max {max(seen.waits):.3f} s"
    console.print(
        f"another team's {len(seen.waits)} requests meanwhile: {waits}; p99 may be {OTHERS_SECONDS:g} s"
    )
    console.print(f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    for fault in faults:
        console.print(f"NOT as it has to be: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
