"""Odd terminals, odd names, odd stores: an operator is told in a line, and can copy what is shown."""

from uuid import uuid4

import pytest

from ops import show

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
