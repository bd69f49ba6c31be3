"""Whether the tests use containers is decided once, and told with its reason."""

import os
from pathlib import Path

import pytest

from ops.binaries import FORCE
from support.images import CONTAINERS, XDIST, decision
from support.kinds import kinds, local_kinds

# `docker version` answers, `docker build` does not: no index of packages is reached.
ENGINE_WITHOUT_NETWORK = """#!/bin/sh
case "$1" in
version) echo 28.0.0 ;;
*) echo "Temporary failure resolving the index" >&2; exit 100 ;;
esac
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide as the first process of a session of which nothing was asked."""
    monkeypatch.setenv(CONTAINERS, "")
    for name in (XDIST, FORCE, "CI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text(ENGINE_WITHOUT_NETWORK, encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_the_servers_of_this_machine_are_used() -> None:
    found = decision.__wrapped__()
    assert not found.use
    assert not found.trouble
    assert found.told == "no Docker engine answers"
    assert os.environ[CONTAINERS] == "0"  # what the processes that run the tests go by


@pytest.mark.usefixtures("no_network")
def test_images_that_cannot_be_built_are_trouble_that_says_why() -> None:
    found = decision.__wrapped__()
    assert not found.use
    assert found.trouble
    assert found.told.endswith(
        "oncommit-postgres:local cannot be built:\nTemporary failure resolving the index"
    )


@pytest.mark.usefixtures("no_network")
def test_that_trouble_stands_in_the_header_and_tests_run_with_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = decision.__wrapped__()
    monkeypatch.setattr("support.kinds.decision", lambda: found)
    there, told = kinds.__wrapped__()
    assert there == local_kinds()
    assert told[0].startswith("PostgreSQL container: AN ENGINE ANSWERS, BUT")
    assert "Temporary failure resolving the index" in told[0]


@pytest.mark.parametrize("fault", ["no_engine", "no_network"])
def test_whoever_asks_for_containers_gets_them_or_an_error(
    fault: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(fault)
    monkeypatch.setenv(CONTAINERS, "1")
    with pytest.raises(pytest.UsageError, match=f"{CONTAINERS}=1, but"):
        decision.__wrapped__()


@pytest.mark.usefixtures("no_network")
def test_they_can_be_turned_off_or_left_out_and_no_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTAINERS, "0")
    assert decision.__wrapped__().told == f"turned off by {CONTAINERS}=0"
    monkeypatch.setenv(CONTAINERS, "")
    monkeypatch.setenv(FORCE, "embedded")
    assert decision.__wrapped__().told == f"left out by {FORCE}=embedded"
    monkeypatch.setenv(CONTAINERS, "yes")
    with pytest.raises(pytest.UsageError, match="0 or 1"):
        decision.__wrapped__()
