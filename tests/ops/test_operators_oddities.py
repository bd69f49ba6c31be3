"""Odd terminals, odd names, odd stores: an operator is told in a line, and can copy what is shown."""

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from db import oversight
from db.pool import connect
from ops import show
from ops.client import Client
from ops.delivery import preview_name
from ops.following import Followed
from ops.trying import NotGivenError
from support.desk import CLAIM, DIGEST, FINISH, Desk
from support.postgres import Database

HOSTILE = "a\nb\x1b[31m\u202ec.txt"


@pytest.mark.parametrize("columns", ["80", "100"])
def test_an_id_can_be_copied_from_a_narrow_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    job = str(uuid4())
    row = {
        "id": job,
        "team": "a-team-of-some-length",
        "kind": "thumbnail",
        "error_class": "RenderOutputTooLarge",
    }
    row |= dict.fromkeys(("attempt", "max_attempts", "dispatch_no"), "12")
    row["created_at"] = "2026-11-30 10:38:59Z"
    show.tell_rows([row], list(row), as_json=False)
    told = capsys.readouterr().out
    assert any(job in line for line in told.splitlines())
    assert "…" not in told


def test_an_argument_that_is_no_utf8_is_told_in_a_line(desk: Desk) -> None:
    done = desk.run("dispatch", "pause", "--reason", "w\udcfchrung")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "UTF-8" in done.stderr


def test_the_lane_of_probes_is_no_team(desk: Desk) -> None:
    done = desk.run("teams", "create", "oncommit-probe")
    assert done.returncode == 2
    assert "oncommit-probe" in done.stderr


def test_a_store_that_cannot_be_read_is_told_in_a_line(desk: Desk) -> None:
    (job,) = desk.accept()
    desk.admin.execute(CLAIM, [job, job])
    desk.admin.execute(FINISH, [job, job, DIGEST, 3])
    folder = Path(desk.env["ONCOMMIT_BLOBS"])
    folder.mkdir()
    (folder / DIGEST[7:9]).symlink_to(DIGEST[7:9])  # leads to itself
    done = desk.run("artifacts", "verify")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert str(folder) in done.stderr


def test_counting_for_a_prune_has_no_time_limit(database: Database) -> None:
    """It reads every job: beyond some ten million the session's time-out would let nobody prune any more."""
    with connect(database.dsn("operator"), "test") as conn, connect(database.dsn(), "test") as other:
        conn.execute("SET statement_timeout = '300ms'")
        held = threading.Event()

        def hold() -> None:
            with other.transaction():
                other.execute("LOCK jobs IN ACCESS EXCLUSIVE MODE")
                held.set()
                time.sleep(1)  # longer than the time-out

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(10)
        jobs, batches, _ = oversight.prunable(conn, timedelta(days=1), dead_too=False)
        holder.join()
        assert (jobs, batches) == (0, 0)
        assert conn.execute("SHOW statement_timeout").fetchone() == ("300ms",)


def test_a_files_name_cannot_forge_a_line_of_what_is_told() -> None:
    job = {"id": "i", "kind": "page", "document": DIGEST, "title": HOSTILE, "version": 1, "attempt": 0}
    job |= {
        "created_at": datetime.now(UTC).isoformat(),
        "finished_at": None,
        "status": "queued",
        "error_class": None,
    }
    followed = Followed.of(job)
    for text in (*followed.cells(), preview_name(followed, set())):
        assert text.isprintable()


def test_a_socks_proxy_that_nothing_speaks_to_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(NotGivenError, match="ALL_PROXY"):
        Client("http://portal.example", "oc_token")
