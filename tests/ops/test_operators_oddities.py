"""Odd terminals, odd names, odd stores: an operator is told in a line, and can copy what is shown."""

import threading
import time
from datetime import timedelta
from uuid import uuid4

import pytest

from db import oversight
from db.pool import connect
from ops import show
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
