"""Shared fixtures: real servers, real processes, and a proxy between them. See tests/support/."""

from collections.abc import Iterator
from typing import Any

import pytest

from support import examples, full_disk, pgbouncer
from support.containers import remove_mine
from support.images import decision
from support.kinds import kinds
from support.postgres import database, guardian, server, servers_folder, session_server
from support.processes import processes
from support.proxy import proxies
from support.valkey import valkey

__all__ = [
    "database",
    "guardian",
    "processes",
    "proxies",
    "server",
    "servers_folder",
    "session_server",
    "valkey",
]


def pytest_report_header() -> list[str]:
    """Say which PostgreSQL servers the tests run with, and what they leave out."""
    return [*kinds()[1], *examples.told(), *pgbouncer.told(), *full_disk.told()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests want to be read also when they pass, and what the header said too long ago."""
    if decision().trouble:
        terminalreporter.write_line(f"containers: {decision().told}", red=True, bold=True)
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told at the end":
                terminalreporter.write_line(value)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish() -> Iterator[None]:
    """Leave no container behind, however the session ends: fixtures have ended theirs by then."""
    try:
        return (yield)
    finally:
        if decision().use:
            remove_mine()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Leave the outcome where a fixture can see it, so that logs are printed for failures only."""
    report = yield
    if report.when == "call":
        item.oncommit_call = report  # type: ignore[attr-defined]
    return report
