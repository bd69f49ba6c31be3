"""Fixture of an operator's desk: the `oncommit` command as oncommit_operator, and jobs to act on."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from ops.cli import main
from ops.ports import free_port
from runtime.settings import PREFIX, settings
from support.dead import die, replays
from support.postgres import Database

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "0" * 64
ACCEPT = """
SELECT outcome FROM accept_jobs(
  %(team)s, gen_random_uuid()::text, decode(repeat('66', 32), 'hex'), %(batch)s, false,
  %(ids)s::uuid[], array_fill(%(kind)s::text, ARRAY[%(n)s]), array_fill(%(digest)s::text, ARRAY[%(n)s]),
  array_fill('secret title'::text, ARRAY[%(n)s]), array_fill(5::smallint, ARRAY[%(n)s]),
  array_fill(1, ARRAY[%(n)s]), array_fill(NULL::text, ARRAY[%(n)s]), NULL, 'test')
"""
CLAIM = "SELECT outcome FROM claim_jobs(%s, ARRAY[%s]::uuid[], ARRAY[1])"
FINISH = "SELECT finish_jobs(%s, ARRAY[%s]::uuid[], ARRAY[1], ARRAY[1], ARRAY[%s], ARRAY[%s]::bigint[])"


class Desk:
    """An operator's desk: the commands, and the means to make jobs for them."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.admin = database.admin
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self.env = clean | {
            "ONCOMMIT_DATABASE_URL": database.url("operator"),
            "ONCOMMIT_REDIS_URL": f"redis://:hunter2@127.0.0.1:{free_port()}/0",
            "ONCOMMIT_SLOT": database.slot,
            "ONCOMMIT_BLOBS": str(folder / "blobs"),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command as a process of its own, and do not wait for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "ops.cli", *arguments],
            env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, in this process: its imports alone take a second of the machine's.

        It never prints the password of its URL, and never ends with a traceback.
        """
        out, err, code = StringIO(), StringIO(), 0
        environment = patch.dict(os.environ, self.env, clear=True)
        with environment, patch.object(sys, "argv", ["oncommit", *arguments]):
            settings.cache_clear()
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    main()
                except SystemExit as ended:
                    code = int(ended.code or 0)
        settings.cache_clear()
        done = subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
        assert "hunter2" not in done.stdout + done.stderr
        return done

    def ok(self, *arguments: str) -> str:
        """Run it, and return what it said on standard output."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run it with --json, and return what it said."""
        return json.loads(self.ok(*arguments, "--json"))

    def accept(
        self, count: int = 1, team: str = "red", kind: str = "page", document: str = DIGEST
    ) -> list[UUID]:
        """Accept queued jobs of one attempt."""
        self.admin.execute("INSERT INTO teams (id) VALUES (%s) ON CONFLICT DO NOTHING", [team])
        self.admin.execute(
            "INSERT INTO documents (team, digest, size) VALUES (%s, %s, 3) ON CONFLICT DO NOTHING",
            [team, document],
        )
        ids = [uuid4() for _ in range(count)]
        values = {"team": team, "ids": ids, "n": count, "kind": kind, "digest": document}
        values["batch"] = uuid4() if count > 1 else None
        assert self.admin.execute(ACCEPT, values).fetchone() == ("new",)
        return ids

    def die(self, jobs: Sequence[UUID], error: str = "RenderCrashed") -> None:
        die(self.admin, jobs, error)

    def dead(self, count: int = 1, error: str = "RenderCrashed", **where: str) -> list[UUID]:
        jobs = self.accept(count, **where)
        self.die(jobs, error)
        return jobs

    def replays(self) -> dict[UUID, int]:
        return replays(self.admin)


@pytest.fixture
def desk(database: Database, tmp_path: Path) -> Desk:
    """A desk with an empty database and nothing behind its Redis URL."""
    return Desk(database, tmp_path)
