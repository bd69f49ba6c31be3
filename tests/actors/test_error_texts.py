"""What a renderer says when it fails, as a real worker writes it into the events: bounded, and clean."""

import json
import os
from pathlib import Path

import pytest

from actors.clean import MAX_CLASS_LENGTH, MAX_ERROR_BYTES
from support.bench import Bench
from support.desk import Desk
from support.evil_worker import VARIABLE
from support.kinds import kinds
from support.postgres import Database
from support.processes import ROOT, Processes

pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)

ERRORS = """
SELECT type::text, data ->> 'error', data ->> 'error_class' FROM job_events
 WHERE job = %s AND type IN ('failed', 'died') ORDER BY seq
"""


def is_clean(text: str) -> bool:
    return text.isprintable() and bool(text.strip())


@pytest.mark.parametrize(
    ("renderer", "begins"),
    [
        ("raise_exit", ("SystemExit", "[31myyyy")),
        ("raise_dirty", ("Dirty [31mClass x", "out of ink [31m 2J forged line €€€€")),
        ("raise_nothing", ("ValueError", "ValueError")),
    ],
    ids=["exit", "dirty", "nothing"],
)
def test_every_attempts_error_is_in_the_events_clean_and_short(
    bench: Bench,
    whole: Processes,
    database: Database,
    tmp_path: Path,
    *,
    renderer: str,
    begins: tuple[str, str],
) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    evil = {VARIABLE: renderer, "PYTHONPATH": path, "ONCOMMIT_BACKOFF_BASE_MS": "1"}
    whole.worker(setup="support.evil_worker:setup", **evil)
    (job,) = bench.accept(max_attempts=2)
    assert bench.settled() == {"dead": 1}
    rows = bench.admin.execute(ERRORS, [job]).fetchall()
    assert [row[0] for row in rows] == ["failed", "died"], "each attempt left its own"
    for _, text, error_class in rows:
        assert is_clean(text)
        assert len(text.encode()) <= MAX_ERROR_BYTES
        assert text.startswith(begins[1])
        assert is_clean(error_class)
        assert len(error_class) <= MAX_CLASS_LENGTH
        assert error_class.startswith(begins[0])
    desk = Desk(database, tmp_path)
    shown = desk.json("dead", "show", str(job))
    assert (shown["status"], shown["error_class"]) == ("dead", rows[-1][2])
    ends = [event for event in shown["events"] if event["type"] in {"failed", "died"}]
    assert [event["data"]["error_class"] for event in ends] == [row[2] for row in rows]
    assert desk.ok("dead", "show", str(job)).translate(dict.fromkeys(map(ord, "\n\t"))).isprintable()
    assert "yyyy" not in json.dumps(shown)
    assert desk.json("dead", "list")[0]["id"] == str(job)
