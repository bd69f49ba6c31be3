"""The runbook's rollout and rollback, command by command as it has them, beside jobs that must survive."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from runtime.blobs import BlobStore
from support.desk import Desk
from support.kinds import kinds
from support.processes import Processes
from support.waiting import eventually

# It is about the commands; what they do on each server has tests of its own.
pytestmark = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
SECTION = RUNBOOK.read_text(encoding="utf-8").split("## Rollout and rollback")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
TO_VERSION_2 = (
    "SELECT replace(pg_get_functiondef('preview_message'::regproc), '\"version\":1', '\"version\":2')"
)


def commands(block: str) -> list[list[str]]:
    """Return the arguments of each `oncommit` command of a block."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["oncommit"]]


@pytest.fixture
def run(desk: Desk, processes: Processes) -> Callable[[list[str]], str]:
    """Run a command as the page's reader does: `migrate` as the owner, the others as the operator."""
    desk.env |= {"ONCOMMIT_REDIS_URL": processes.valkey.url}

    def run_(arguments: list[str]) -> str:
        role = None if arguments[0] == "migrate" else "operator"
        desk.env["ONCOMMIT_DATABASE_URL"] = desk.database.url(role)  # type: ignore[arg-type]
        return desk.ok(*arguments)

    return run_


def test_each_command_of_the_rollout_and_of_the_rollback_does_what_the_page_says(
    desk: Desk, processes: Processes, run: Callable[[list[str]], str]
) -> None:
    document = BlobStore(Path(processes.blobs)).put_bytes(b"a document")
    processes.relay()
    processes.worker(threads=2)

    def status(jobs: list[UUID]) -> set[str]:
        sql = "SELECT status::text FROM jobs WHERE id = ANY(%s)"
        return {row[0] for row in desk.admin.execute(sql, [jobs]).fetchall()}

    rollout, rollback = (commands(block) for block in BLOCKS)
    assert [" ".join(words[:2]) for words in rollout] == ["dispatch probe", "migrate", "dispatch probe"]
    desk.admin.execute("DELETE FROM schema_migrations WHERE name = 'functions'")
    told = [run(words) for words in rollout]
    assert "applied: functions" in told[1]

    # The next version's messages, which this version's worker puts aside.
    row = desk.admin.execute(TO_VERSION_2).fetchone()
    assert row is not None
    desk.admin.execute(str(row[0]).encode())
    strange = desk.accept(2, document=document)
    eventually(lambda: status(strange) == {"dead"})

    assert [" ".join(words[:2]) for words in rollback] == [
        "dispatch drain", "dispatch resume", "dispatch probe", "quarantine list", "dead replay",
    ]  # fmt: skip
    drain, resume, probe, aside, replay = rollback
    run(drain)
    desk.admin.execute("DELETE FROM schema_migrations WHERE name = 'functions'")
    run(["migrate"])  # "put the old version back"
    kept = desk.accept(3, document=document)
    assert status(kept) == {"queued"}
    run(resume)
    run(probe)
    assert run(aside).count("unsupported version 2") == 2
    run(replay)
    eventually(lambda: status(strange + kept) == {"succeeded"}, timeout=60)
    once = sorted(line["job"] for line in processes.renders() if line["phase"] == "start")
    assert once == sorted(str(job) for job in strange + kept)
