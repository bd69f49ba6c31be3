"""The operator's hands: `oncommit dead replay`, as a process that can be killed."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from benchmarks.replay.scene import STORM, Scene

SECONDS = 120.0
LOOK_EVERY_SECONDS = 0.005
DONE = "SELECT coalesce(max(done), 0) FROM replay_runs"


@dataclass(frozen=True, slots=True)
class Killed:
    """The first process: how it ended, how many jobs its run had replayed by then, what it had said."""

    code: int
    done: int
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The second process: how it ended and how many jobs it replayed itself."""

    code: int
    replayed: int
    seconds: float


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops", "dead", "replay", "--team", STORM, *arguments]


def dry_run(on: Scene, console: Console) -> dict[str, Any]:
    """Print the plan as an operator sees it; return it as a script does."""
    asked = [_command("--dry-run", *more) for more in ([], ["--json"])]
    human, script = (
        subprocess.run(one, env=on.operator, capture_output=True, text=True, check=True)  # noqa: S603 -- ours
        for one in asked
    )
    console.print(f"$ oncommit dead replay --team {STORM} --dry-run\n{human.stdout}{human.stderr}")
    plan: dict[str, Any] = json.loads(script.stdout)
    return plan


def _begun(on: Scene) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 -- our own command
        _command("--reason", "the renderer is mended", "--json"),
        env=on.operator,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _done(on: Scene) -> int:
    row = on.admin.execute(DONE).fetchone()
    return int(row[0]) if row else 0


def killed_midway(on: Scene) -> Killed:
    """Begin the replay, and SIGKILL its process when more than a third is done."""
    started = time.monotonic()
    process = _begun(on)
    while _done(on) <= on.jobs // 3 and process.poll() is None:
        if time.monotonic() - started > SECONDS:
            break
        time.sleep(LOOK_EVERY_SECONDS)
    process.kill()
    _, said = process.communicate()
    _until_its_session_has_ended(on)
    return Killed(process.returncode, _done(on), said.strip(), time.monotonic() - started)


def _until_its_session_has_ended(on: Scene) -> None:
    """Wait until PostgreSQL has noticed: what it was in the middle of may still commit."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncommit operate'"
    deadline = time.monotonic() + SECONDS
    while (row := on.admin.execute(query).fetchone()) and row[0] and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_SECONDS)


def replayed_to_the_end(on: Scene) -> Ended:
    """Give the same command again; return when it has ended."""
    started = time.monotonic()
    process = _begun(on)
    told, _ = process.communicate(timeout=SECONDS)
    replayed = int(json.loads(told)["replayed"]) if process.returncode == 0 else 0
    return Ended(process.returncode, replayed, time.monotonic() - started)
