"""A job as a client follows it: its resource and its events, the board that shows it, its preview's name."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from db.jobs import JobStatus
from ops.board import SHOWN_ROWS, Board, table
from ops.delivery import STEM_BYTES, preview_name
from ops.following import Followed

JOB: Mapping[str, Any] = {
    "id": "1",
    "title": "[red]a.txt",
    "kind": "page",
    "document": "sha256:" + "0" * 64,
    "status": "queued",
    "attempt": 0,
    "created_at": "2026-01-01T12:00:00Z",
    "finished_at": None,
    "error_class": None,
    "version": 1,
}


def test_a_row_tells_document_kind_status_attempts_and_the_time_to_the_end() -> None:
    assert Followed.of(JOB).cells() == ["[red]a.txt", "page", "queued", "0", ""]
    done = {**JOB, "status": "succeeded", "attempt": 2, "finished_at": "2026-01-01T12:00:01.5+00:00"}
    assert Followed.of(done).cells()[2:] == ["succeeded", "2", "1.50 s"]
    dead = Followed.of({**done, "status": "dead", "error_class": "Broken", "title": None})
    assert dead.cells()[:3] == [JOB["document"], "page", "dead (Broken)"]
    assert (dead.ended, dead.succeeded, dead.facts()["status"]) == (True, False, "dead")


def test_a_job_follows_its_events_to_the_same_as_its_resource() -> None:
    at = "2026-01-01T12:00:0{}Z"
    job = Followed.of(JOB)
    seen = []
    for n, (type_, data) in enumerate(
        [
            ("claimed", {"attempt": 1}),
            ("failed", {"attempt": 1, "error_class": "Broken", "error": "no such page"}),
            ("claimed", {"attempt": 2}),
            ("released", {"attempt": 2, "refunded": True, "error_class": "DiskFull", "error": "full"}),
            ("claimed", {"attempt": 2}),
            ("died", {"attempt": 2, "error_class": "Broken", "error": "the document is empty"}),
            ("replayed", {"attempt": 2}),
            ("claimed", {"attempt": 1}),
            ("succeeded", {"attempt": 1}),
        ],
        start=2,
    ):
        job = job.after({"seq": n, "type": type_, "at": at.format(n % 10), "data": data})
        seen.append((job.told(), job.attempts, job.seconds))
    assert seen[1] == ("retrying (Broken: no such page)", 1, None)
    assert seen[3] == ("queued (DiskFull: full)", 1, None)
    assert seen[5] == ("dead (Broken: the document is empty)", 2, 7.0)
    assert seen[6] == ("queued", 0, None)
    assert (*seen[8], job.version) == ("succeeded", 1, 0.0, 10)


def test_the_table_of_many_jobs_shows_those_that_wait_and_counts_the_rest() -> None:
    ended = [replace(Followed.of(JOB), id=f"e{n}", status=JobStatus.SUCCEEDED) for n in range(SHOWN_ROWS)]
    waiting = replace(Followed.of(JOB), title="[waits]")
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(table([*ended, waiting]))
    text = console.export_text()
    assert "[waits]" in text
    assert f"{SHOWN_ROWS} of {SHOWN_ROWS + 1} succeeded; 1 more" in text


def test_a_pipe_gets_one_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    job = Followed.of({**JOB, "title": "x" * 150})
    with Board(Console(width=80)) as board:
        for status in (JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.SUCCEEDED):
            board.show([replace(job, status=status)])
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "queued, attempts 0",
        "succeeded, attempts 0",
    ]


def test_a_preview_gets_a_name_that_stays_in_its_folder_and_is_its_own() -> None:
    job = replace(Followed.of(JOB), title="../../etc/passwd")
    first = preview_name(job, set())
    assert first == "_.._etc_passwd.page.png"
    assert preview_name(job, {first}) == "_.._etc_passwd-2.page.png"
    assert preview_name(replace(job, title="..."), set()) == "document.page.png"
    long = preview_name(replace(job, title="ü" * 200), set())
    assert len(long.encode()) <= STEM_BYTES + len(".page.png")
