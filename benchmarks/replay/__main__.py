"""Replay 10,000 dead jobs, kill the operator's process midway, give the same command again.

`python -m benchmarks.replay [--jobs 10000]`; exit 1 unless everything that the table claims was measured to
be so. Team `storm` has the dead jobs, half of which fail again at once; team `calm` sends a job a second,
before the replay (its baseline) and throughout. What was rendered is counted by the render log, which does
not trust the tables.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg
from rich.console import Console

from benchmarks.replay.operator import Killed, dry_run, killed_midway, replayed_to_the_end
from benchmarks.replay.scene import CALM, LOGGED_MS, STORM, Calm, Scene, scene
from ops.demo.claims import Act, table
from ops.exit_codes import INTERRUPTED
from ops.signals import interrupt_on_termination

BASELINE_SECONDS = 30.0
# Nothing ended in so long: something is stuck, however slow the machine is.
STUCK_SECONDS = 60.0
PIPE_COLUMNS = 140  # a pipe has no width, and a table cut to a made-up one would lose words
CALM_AT_MOST = 2.0  # times its 95th percentile without the replay
STATEMENT_MS = 1000.0

REPLAYED = """
SELECT count(*), count(DISTINCT e.job) FROM job_events e JOIN jobs j ON j.id = e.job
 WHERE e.type = 'replayed' AND j.team = %s
"""
AUDITED = """
SELECT count(*), count(DISTINCT job)
  FROM operator_actions a, jsonb_array_elements_text(a.target->'jobs') AS job
 WHERE a.action = 'replay'
"""
STATUSES = "SELECT status::text, count(*) FROM jobs WHERE team = %s GROUP BY 1"
LEFT = "SELECT count(*) FROM jobs WHERE team = %s AND finished_at IS NULL"
RUNS = "SELECT count(*), coalesce(sum(done), 0), count(finished_at) FROM replay_runs"
P95 = """
SELECT count(*),
       1000 * percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)),
       count(*) FILTER (WHERE status <> 'succeeded')
  FROM jobs WHERE team = %s AND created_at >= to_timestamp(%s) AND created_at < to_timestamp(%s)
"""


def numbers(admin: psycopg.Connection, query: str, *values: object) -> tuple[int, ...]:
    """Return the one row of a query."""
    row = admin.execute(query.encode(), values).fetchone() or ()
    return tuple(int(value or 0) for value in row)


def plan_act(on: Scene, console: Console) -> Act:
    """Show the plan, which changes nothing."""
    act = Act("oncommit dead replay --dry-run")
    with act.clock():
        told = dry_run(on, console)
        act.claim("jobs in the plan", expected=on.jobs, measured=told["jobs"])
        halves = {row["error_class"]: row["jobs"] for row in told["groups"]}
        act.claim("of them by error class", expected=on.halves(), measured=halves)
        dead = dict(on.admin.execute(STATUSES, [STORM]).fetchall())
        act.claim("changed", expected={"dead": on.jobs}, measured=dead)
    return act


def replay_act(on: Scene) -> tuple[Act, Killed]:
    """Replay, kill it midway, and replay again, to the end of every job."""
    act = Act("the replay, killed (SIGKILL) midway, and the same command again")
    with act.clock():
        first = killed_midway(on)
        act.claim("the first was killed", expected=-9, measured=first.code)
        act.claim("when it was midway", expected=True, measured=0 < first.done < on.jobs)
        second = replayed_to_the_end(on)
        act.claim("the second ended with", expected=0, measured=second.code)
        act.claim("jobs by the two", expected=on.jobs, measured=first.done + second.replayed)
        act.claim("runs, jobs of them, finished", expected=(1, on.jobs, 1), measured=numbers(on.admin, RUNS))
        act.claim("jobs that have not ended", expected=0, measured=left_when_none_ends(on))
        act.fact("replayed by the first, by the second", f"{first.done}, {second.replayed}")
        act.fact("begun, killed, begun again, all handed over", f"{first.seconds + second.seconds:.1f} s")
    return act, first


def left_when_none_ends(on: Scene) -> int:
    """Return how many jobs have not ended when all have, or when none has ended for a long time."""
    left, since = on.jobs, time.monotonic()
    while left and time.monotonic() - since < STUCK_SECONDS:
        time.sleep(0.2)
        if (now := numbers(on.admin, LEFT, STORM)[0]) != left:
            left, since = now, time.monotonic()
    return left


def once_act(on: Scene) -> Act:
    """Show that each dead job was replayed exactly once, by every account there is."""
    act = Act("each was replayed exactly once")
    with act.clock():
        exactly = (on.jobs, on.jobs)
        act.claim("events `replayed`, jobs", expected=exactly, measured=numbers(on.admin, REPLAYED, STORM))
        act.claim("jobs in the audit trail, distinct", expected=exactly, measured=numbers(on.admin, AUDITED))
        starts = Counter(line["job"] for line in on.renders() if line["phase"] == "start")
        mine = [count for job, count in starts.items() if job in on.dead]
        act.claim("renders, of jobs (by the render log)", expected=exactly, measured=(sum(mine), len(mine)))
        ended = dict(on.admin.execute(STATUSES, [STORM]).fetchall())
        half = on.jobs // 2
        act.claim("half failed again", expected={"dead": half, "succeeded": on.jobs - half}, measured=ended)
    return act


def calm_act(on: Scene, calm: Calm, before: float, during: float, after: float) -> Act:
    """Show what the other team saw, and what PostgreSQL had to do."""
    act = Act("and nobody else noticed")
    with act.clock():
        alone, storm = (
            numbers(on.admin, P95, CALM, since, until) for since, until in ((before, during), (during, after))
        )
        act.claim("jobs of the other team that did not succeed", expected=0, measured=alone[2] + storm[2])
        act.claim("requests of it that were not accepted", expected=0, measured=len(calm.refused))
        act.claim(
            f"its 95th percentile is within {CALM_AT_MOST:g} times",
            expected=True,
            measured=0 < storm[1] <= CALM_AT_MOST * alone[1],
        )
        longest, statement = on.longest_statement()
        act.claim(f"no statement took {STATEMENT_MS:g} ms", expected=True, measured=longest < STATEMENT_MS)
        act.fact("its jobs without, during the replay", f"{alone[0]}, {storm[0]}")
        act.fact("its p95, accepted to ended", f"{alone[1]} ms, {storm[1]} ms")
        act.fact(
            "the longest statement",
            f"{longest:.0f} ms: {statement[:50]}" if longest else f"below {LOGGED_MS} ms",
        )
    return act


def main() -> int:
    """Run; return 0 when everything held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000, help="2 to 10,000")
    parser.add_argument("--json", action="store_true", help="the acts as JSON, too")
    given = parser.parse_args()
    interrupt_on_termination()
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=PIPE_COLUMNS)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oncommit-replay-") as folder:
        Path(folder).chmod(0o711)  # the servers' account enters it
        with scene(Path(folder), given.jobs, lambda text: console.print(text, style="dim")) as on:
            acts = [plan_act(on, console)]
            console.print(f"team {CALM} sends a job a second; {BASELINE_SECONDS:g} s without a replay")
            with Calm(on) as calm:
                before = time.time()
                time.sleep(BASELINE_SECONDS)
                during = time.time()
                act, first = replay_act(on)
                acts.append(act)
                after = time.time()
            calm.wait_ended()
            console.print(first.said, style="dim")
            acts += [once_act(on), calm_act(on, calm, before, during, after)]
    machine = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {time.monotonic() - started:.0f} s"
    console.print(table(acts, f"{given.jobs} dead jobs replayed; {machine}"))
    if given.json:
        console.print(json.dumps([(act.name, act.held, act.facts) for act in acts]))
    return int(not all(act.held for act in acts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
