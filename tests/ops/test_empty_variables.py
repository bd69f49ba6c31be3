"""An empty variable counts as not set: for the embedded stack, and for what `oncommit config` shows."""

from pathlib import Path

import pytest

from ops.commands.config import variables
from ops.stack import Stack, StackPlan


@pytest.mark.parametrize("name", ["ONCOMMIT_TRACES", "ONCOMMIT_TOKEN", "ONCOMMIT_REDIS_URL_FILE"])
def test_it_is_not_shown_as_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"ONCOMMIT_REDIS_URL_FILE": "ONCOMMIT_REDIS_URL"}.get(name, name)
    for value, is_set in (("", False), ("something", True)):
        monkeypatch.setenv(name, value)
        assert {row["name"]: row["set"] for row in variables()}[shown] is is_set


def test_a_stack_uses_its_own_folder_and_simulates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONCOMMIT_BLOBS", "")
    monkeypatch.setenv("ONCOMMIT_SIMULATION", "")
    stack = Stack(StackPlan(home=tmp_path))
    stack.postgres = object()  # type: ignore[assignment]  # embedded
    found = stack.environment()
    assert found["ONCOMMIT_BLOBS"] == str(stack.home.blobs)
    assert found["ONCOMMIT_SIMULATION"] == "1"
