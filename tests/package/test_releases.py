"""Releases N and N+1 of portal, relay and worker beside each other: one database, one Redis, the way back.

N is this tree; N+1 is a copy of it with the changes of `support.next_release`.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from db.migrate import FUNCTIONS
from support import next_release
from support.desk import Desk
from support.kinds import kinds
from support.next_release import FIELD, MIGRATION, TOLD
from support.processes import ROOT, Processes, Running
from support.team import Client, token_for
from support.waiting import always, eventually

# A dozen processes of two releases are started and ended, one after the other.
pytestmark = pytest.mark.timeout(600)
WHY = ("--reason", "releases")
#: Long enough that nobody takes a whole handful before the other worker asks, milliseconds.
RENDER_MS = 100
HANDFUL = 3
UNKNOWN = "unsupported version 2: this worker knows 1"
STATES = "SELECT id::text, status::text, error_class, attempt FROM jobs WHERE id = ANY(%s::uuid[])"
ASIDE = "SELECT reason FROM quarantine ORDER BY id"


@dataclass
class Release:
    """The processes of one release; `tree` holds its packages."""

    tree: Path
    processes: Processes
    running: dict[str, Running] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)

    def start(self, *roles: str, threads: int = 1) -> None:
        """Start one process of each role."""
        for role in roles:
            more = {"ready": role != "relay", "PYTHONPATH": str(self.tree)}
            if role == "worker":
                more["threads"] = threads
            found: Running = getattr(self.processes, role)(**more)
            found.wait_ready()  # a relay that stands by is ready, too
            assert (TOLD in found.log_text()) == (self.tree != ROOT)
            self.running[role] = found
            if role == "worker":
                self.pids.add(found.worker_pid)

    def stop(self, *roles: str) -> None:
        for role in roles:
            self.running[role].stop()

    def migrate(self) -> list[str]:
        """Run this release's `oncommit migrate` and return what it applied."""
        done = subprocess.run(
            [sys.executable, "-m", "ops", "migrate", "--json"], cwd=self.processes.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.tree),
                 "ONCOMMIT_DATABASE_URL": self.processes.database.url()},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout)["applied"])

    @property
    def role(self) -> str:
        """What its relay says it is."""
        with suppress(OSError):  # busy
            page = self.running["relay"].page("/readyz")
            return next((r for r in ("standby", "polling", "relay") if f'"role":"{r}"' in page), page)
        return ""


class Pair:
    """Release N and N+1, the team that uses their portals, and all that it was promised."""

    def __init__(self, desk: Desk, processes: Processes, tree: Path) -> None:
        self.desk, self.processes = desk, processes
        self.now, self.next = Release(ROOT, processes), Release(tree, processes)
        self.token = token_for(processes.database, "red")[0]
        self.accepted: dict[str, str] = {}  # job -> "now" or "next", by whose portal took it

    def accept(self, *names: str) -> list[str]:
        """Let each of these releases' portals accept a handful of jobs, one after the other."""
        jobs: list[str] = []
        for name in names or ("now", "next"):
            portal = getattr(self, name).running["portal"]
            client = Client(self.processes.database, portal.url, "red", self.token)
            for _ in range(HANDFUL):
                jobs.append(str(client.job(simulate={"sleep_ms": RENDER_MS})["id"]))
                self.accepted[jobs[-1]] = name
            client.http.close()
        return jobs

    def states(self, jobs: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """Return job -> (status, error class, attempt)."""
        return {row[0]: row[1:] for row in self.desk.admin.execute(STATES, [list(jobs)]).fetchall()}

    def end(self, jobs: Sequence[str], *ends: str) -> dict[str, tuple[Any, ...]]:
        """Wait until each of these jobs has one of these statuses."""
        eventually(
            lambda: {state[0] for state in self.states(jobs).values()} <= set(ends),
            timeout=60, describe=lambda: (self.states(jobs), self.aside()),
        )  # fmt: skip
        return self.states(jobs)

    def take_over(self, winner: Release, loser: Release) -> None:
        """Kill the relay that streams, accept meanwhile, and see the other one publish all of it."""
        eventually(lambda: (winner.role, loser.role) == ("standby", "relay"), describe=lambda: winner.role)
        loser.running["relay"].kill()
        jobs = self.accept()
        eventually(lambda: winner.role == "relay", timeout=40, describe=lambda: winner.role)
        self.end(jobs + self.accept(), "succeeded", "dead")

    def aside(self) -> list[str]:
        """Return the reasons of what lies in quarantine."""
        return [row[0] for row in self.desk.admin.execute(ASIDE).fetchall()]

    def renders(self) -> list[dict[str, Any]]:
        """Return the starts in the render log."""
        return [line for line in self.processes.renders() if line["phase"] == "start"]

    def each_once(self) -> None:
        """All that was accepted has succeeded, was rendered once, and left nothing."""
        self.end(list(self.accepted), "succeeded")
        assert Counter(line["job"] for line in self.renders()) == Counter(list(self.accepted))
        assert self.desk.admin.execute("SELECT count(*) FROM outbox").fetchone() == (0,)

    def known_by_redis(self) -> bool:
        """Tell whether a relay of the next release has published since Redis was emptied."""
        return bool(self.processes.valkey.client.hexists("oncommit:token", FIELD))


@pytest.fixture
def pair(request: pytest.FixtureRequest, desk: Desk, processes: Processes, tmp_path: Path) -> Pair:
    """Release N at work; N+1 is written, and not yet begun."""
    tree = next_release.build(tmp_path / "next", message_version=getattr(request, "param", 1))
    found = Pair(desk, processes, tree)
    found.now.start("portal", "relay", "worker")
    return found


# Each output plugin meets the new columns in its own way, so every server.
def test_two_releases_do_each_others_work_and_take_over_from_each_other_both_ways(pair: Pair) -> None:
    now, following = pair.now, pair.next
    pair.accept("now")
    assert following.migrate() == [MIGRATION, FUNCTIONS]
    pair.accept("now")
    following.start("portal", "relay", "worker")
    pair.end(pair.accept(), "succeeded")
    assert not pair.known_by_redis()
    pair.take_over(following, now)
    assert pair.known_by_redis()
    now.start("relay")
    pair.take_over(now, following)

    # Back: first the functions, while the next release's processes still run.
    assert now.migrate() == [FUNCTIONS]
    following.start("relay")
    pair.end(pair.accept(), "succeeded")
    pair.take_over(following, now)
    now.start("relay")
    following.stop("relay", "worker", "portal")
    eventually(lambda: now.role == "relay", timeout=40)
    pair.accept("now")
    pair.each_once()
    assert pair.aside() == []
    hands = {
        (pair.accepted[line["job"]], "now" if line["pid"] in now.pids else "next") for line in pair.renders()
    }
    assert hands == {(portal, worker) for portal in ("now", "next") for worker in ("now", "next")}


@pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
@pytest.mark.parametrize("pair", [2], indirect=True)
def test_a_raised_message_version_waits_aside_and_is_replayed_after_the_rollback(pair: Pair) -> None:
    now, following = pair.now, pair.next
    pair.end(pair.accept("now"), "succeeded")
    assert following.migrate() == [MIGRATION, FUNCTIONS]
    following.start("portal", "relay")
    # This release's worker alone: nothing is rendered, nothing loops, whoever accepted and published.
    refused = pair.accept()
    assert set(pair.end(refused, "dead").values()) == {("dead", "Quarantined", 0)}
    before = len(pair.renders())
    pair.take_over(following, now)
    assert len(pair.renders()) == before
    assert set(pair.aside()) == {UNKNOWN}
    assert len(pair.aside()) == 3 * 2 * HANDFUL

    # The next release's worker alone, with messages of both versions; then both.
    now.stop("worker")
    following.start("worker")
    pair.end(pair.accept(), "succeeded")
    now.start("relay", "worker")
    mixed = pair.end(pair.accept(), "succeeded", "dead")
    assert set(mixed.values()) <= {("succeeded", None, 1), ("dead", "Quarantined", 0)}

    # Back. What the next release accepted last waits in a version that nobody left can read.
    following.stop("worker")
    now.stop("worker")
    waiting = pair.accept()
    following.stop("portal", "relay")
    eventually(lambda: now.role == "relay", timeout=40)
    assert now.migrate() == [FUNCTIONS]
    now.start("worker")
    pair.end(pair.accept("now"), "succeeded")
    assert set(pair.end(waiting, "dead").values()) == {("dead", "Quarantined", 0)}
    dead = [job for job, state in pair.states(list(pair.accepted)).items() if state[0] == "dead"]
    aside = len(pair.aside())
    assert aside == len(dead)
    always(lambda: len(pair.aside()) == aside, during=1.0, describe="nothing loops")
    assert pair.desk.json("dead", "replay", "--error", "Quarantined", *WHY)["replayed"] == len(dead)
    pair.each_once()
