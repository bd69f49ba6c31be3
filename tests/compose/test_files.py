"""The containers' files agree with each other and with the code; no engine is needed."""

import json
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from actors.shutdown import LAST_SECONDS, LEAVE_SECONDS
from actors.worker_process import GOODBYE_SECONDS
from runtime.metrics import TABLE

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
DOCKERFILES = sorted(COMPOSE.glob("*Dockerfile"))
RULES = COMPOSE / "prometheus" / "rules.yml"
DASHBOARD = COMPOSE / "grafana" / "dashboards" / "oncommit.json"
PROVISIONING = COMPOSE / "grafana" / "provisioning"
RUNBOOK = ROOT / "docs" / "runbook.md"
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
#: Prometheus makes it, for every page that it reads.
SCRAPED = "up"
#: A name that is followed by neither a parenthesis nor a dot, and is no word of PromQL nor a label.
NAME = re.compile(r"\b[a-z][a-z_]{1,}\b(?!\s*\()")
WORDS = frozenset({"by", "or", "and", "unless", "on"})
GROUPING = re.compile(r"\bby\s*\([^)]*\)")
BRACKETS = re.compile(r"\{[^}]*\}|\[[^]]*\]")


def exposed() -> set[str]:
    """Return the names that Prometheus sees: a histogram is three."""
    names = {row.name for row in TABLE if row.kind != "seconds"}
    for row in TABLE:
        if row.kind == "seconds":
            names |= {f"{row.name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def named(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression names."""
    bare = BRACKETS.sub("", GROUPING.sub("", expression))
    return set(NAME.findall(bare)) - WORDS - {SCRAPED}


def labels(expression: str) -> set[str]:
    """Return the labels that it selects or groups by."""
    found = {
        name for inside in re.findall(r"\{([^}]*)\}", expression) for name in re.findall(r"(\w+)=", inside)
    }
    for inside in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        found |= {name.strip() for name in inside.split(",")}
    return found - {"le"}  # the bucket's bound


def dashboard_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


EXPRESSIONS = (
    re.findall(r"^\s+expr: (.+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE) + dashboard_expressions()
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_rules_and_dashboard_name_only_what_is_measured(expression: str) -> None:
    names = named(expression)
    assert names <= exposed()
    assert names or SCRAPED in expression
    known = {label for row in TABLE for label in row.labels if any(n.startswith(row.name) for n in names)}
    assert labels(expression) <= known


def test_every_alert_has_a_severity_and_says_what_to_do() -> None:
    rules = RULES.read_text(encoding="utf-8").split("- alert: ")[1:]
    assert len(rules) == len(re.findall(r"expr:", RULES.read_text(encoding="utf-8")))
    for rule in rules:
        assert re.search(r"severity: (page|look)\b", rule), rule
        assert "summary:" in rule, rule
        assert "action:" in rule, rule


def test_panels_do_not_cover_each_other() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    cells = [
        (x, y)
        for p in panels
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({p["id"] for p in panels}) == len(panels)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_need_no_buildkit_and_run_as_somebody(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    assert not re.search(r"^# syntax=|--mount=|--link|--chmod|<<", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= {"debian:trixie-slim", "python:3.13-slim"}
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    assert users
    assert users[-1].split(":")[0] not in {"root", "0"}


def test_the_image_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], *project["project"]["license-files"], "README.md"}
    copied = " ".join(
        re.findall(r"^COPY (?!--from)(.+) \S+$", (COMPOSE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    )
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    assert needed <= set(copied.split())
    assert needed <= set(allowed)


def secrets(folder: Path) -> dict[str, str]:
    subprocess.run([COMPOSE / "secrets.sh", folder], check=True, timeout=30)
    return {file.name: file.read_text("ascii") for file in folder.iterdir()}


def test_every_secret_that_is_mounted_is_made(tmp_path: Path) -> None:
    made = secrets(tmp_path / "secrets")
    mounted = re.findall(
        r"^  (\w+): \{file: \"\S+/(\w+)\"\}$", (COMPOSE / "compose.yaml").read_text("utf-8"), re.MULTILINE
    )
    assert {name for name, _ in mounted} == {file for _, file in mounted} == set(made)


def test_secrets_are_random_kept_and_not_for_others(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = secrets(folder)
    assert secrets(folder) == made
    assert set(made.values()).isdisjoint(secrets(tmp_path / "others").values())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    roles = {
        urlsplit(text).username: urlsplit(text).password
        for name, text in made.items()
        if name.endswith("_url")
    }
    assert roles["postgres"] == made["postgres_password"].strip()
    assert roles[""] == made["redis_password"].strip()
    assert len(set(roles.values())) == len(roles)
    assert all(password and len(password.strip()) == 64 for password in roles.values())


def test_every_container_of_ours_is_given_time_to_stop() -> None:
    """A worker needs its grace, 5 s for the ends, 15 s for what is left, 12 s for the goodbye."""
    text = (COMPOSE / "compose.yaml").read_text("utf-8")
    grace = float(re.findall(r'ONCOMMIT_SHUTDOWN_GRACE_SECONDS: "(\d+)"', text)[0])
    periods = dict(
        re.findall(r"^  (\w+):\n(?:    .*\n|\n)*?    stop_grace_period: (\d+)s", text, re.MULTILINE)
    )
    assert float(periods["worker"]) >= grace + LAST_SECONDS + LEAVE_SECONDS + GOODBYE_SECONDS
    assert float(periods["portal"]) > grace


def test_the_runbook_knows_every_alert_and_each_is_tried() -> None:
    assert len(ALERTS) > 10
    runbook = RUNBOOK.read_text(encoding="utf-8")
    section = runbook[runbook.index("## When an alert wakes you") :].split("\n## ")[0]
    assert {name for name in ALERTS if f"`{name}`" not in section} == set()
    tried = (RULES.parent / "rules_test.yml").read_text(encoding="utf-8")
    fires = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", tried))
    assert set(ALERTS) == fires


def test_grafana_finds_its_dashboards_and_their_data() -> None:
    source = (PROVISIONING / "datasources" / "prometheus.yaml").read_text(encoding="utf-8")
    (uid,) = re.findall(r"^\s+uid: (\S+)$", source, re.MULTILINE)
    (url,) = re.findall(r"^\s+url: (\S+)$", source, re.MULTILINE)
    compose = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    services = re.findall(
        r"^  (\w+):$", compose.split("\nservices:")[1].split("\nnetworks:")[0], re.MULTILINE
    )
    assert urlsplit(url).hostname in services
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {uid}
    provider = (PROVISIONING / "dashboards" / "oncommit.yaml").read_text(encoding="utf-8")
    (path,) = re.findall(r"path: ([^\s}]+)", provider)
    assert f"- ./grafana/dashboards:{path}:ro\n" in compose
    assert "- ./grafana/provisioning:/etc/grafana/provisioning:ro\n" in compose


def test_every_service_is_confined_and_limited() -> None:
    compose = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    contained = compose.split("x-contained:")[1].split("\nx-")[0]
    for line in ("init: true", "read_only: true", "cap_drop: [ALL]", "no-new-privileges:true"):
        assert line in contained
    services = compose.split("\nservices:\n")[1].split("\nnetworks:")[0]
    blocks = re.findall(r"^  (\w+):\n((?:    .*\n|\n|  *#.*\n)+)", services, re.MULTILINE)
    assert len(blocks) >= 8
    for name, block in blocks:
        assert re.search(r"<<: (\*contained|\*process|\[\*)", block), name
        for limit in ("mem_limit:", "cpus:", "pids_limit:"):
            assert limit in block, (name, limit)
