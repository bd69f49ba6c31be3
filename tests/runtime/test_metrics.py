"""The table of metrics, the code that counts, and the page that tells of them are one."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import metric_table, metrics

ROOT = Path(__file__).parents[2]
PACKAGES = ("portal", "ops", "relay", "actors", "broker", "db", "runtime")
TABLE = {row.name: row for row in metric_table.TABLE}
TELL = {"count": "counter", "gauge": "gauge", "gauges": "gauge", "observe": "seconds"}

SERVERS = """
from runtime.health import Health, serve_health
ok = lambda: Health(ok=True)
first, second, third = (serve_health(ok, ok) for _ in range(3))
print(first.url, second.url, third.url)
"""


def calls() -> list[tuple[str, str, ast.Call]]:
    """Return (where, function, call) of everything in the code that measures."""
    found: list[tuple[str, str, ast.Call]] = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("metrics"), attr=attr)) if attr in TELL:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", attr, node))
                case _:
                    pass
    return found


def test_whatever_is_measured_is_in_the_table_with_these_labels_and_every_row_is_measured() -> None:
    used: set[str] = set()
    for where, how, call in calls():
        name = call.args[0]
        assert isinstance(name, ast.Constant), f"{where}: a metric's name is written out"
        row = TABLE[str(name.value)]
        assert row.kind == TELL[how], where
        if how != "gauges":
            assert {keyword.arg for keyword in call.keywords} == set(row.labels), where
        used.add(row.name)
    assert used == set(TABLE)


def test_the_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert metric_table.renewed(page) == page
    assert len(TABLE) == len(metric_table.TABLE)
    for row in metric_table.TABLE:
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name


def test_a_gauge_whose_series_come_and_go_keeps_no_old_ones() -> None:
    metrics.gauges("lane_waiting", {("previews", "acme"): 3, ("previews", "other"): 1})
    metrics.gauges("lane_waiting", {("previews", "zeta"): 2})
    shown = [line for line in metrics.exposition().decode().splitlines() if line.startswith("lane_waiting{")]
    assert shown == ['lane_waiting{lane="zeta",queue="previews"} 2.0']
    metrics.forget("lane_waiting")
    assert "lane_waiting" not in metrics.exposition().decode()
    metrics.gauges("lane_waiting", {})  # and it can be told again
    metrics.forget("lane_waiting")


def test_what_the_table_does_not_name_cannot_be_measured() -> None:
    with pytest.raises(KeyError):
        metrics.count("jobs_of_team_acme_total")
    with pytest.raises(ValueError, match="abel"):
        metrics.count("jobs_accepted_total", kind="page", team="acme")
    with pytest.raises(TypeError):
        metrics.gauge("jobs_accepted_total", 1)


def test_processes_with_one_health_port_lie_side_by_side() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ONCOMMIT_HEALTH_PORT": "0"}
    command = [sys.executable, "-c", SERVERS]
    anywhere = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    port = int(anywhere.stdout.split()[0].rpartition(":")[2])
    environment["ONCOMMIT_HEALTH_PORT"] = str(port)
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    ports = [int(url.rpartition(":")[2]) for url in told]
    assert ports == sorted(set(ports))
    assert port <= ports[0] <= ports[2] < port + 64
