"""`python -m tests.compose`: run the containers, lose Valkey under traffic, and leave nothing behind.

Exit codes: 0 everything held; 1 something did not; 3 no Docker engine answers.
"""

import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from ops.demo.claims import Claim

from .engine import ROOT, EngineError, NoEngineError, Project, require_engine
from .scenario import Scenario

HELD, MISSED, NO_ENGINE = 0, 1, 3
LOG_LINES = "40"


def main() -> int:
    """Run; return the exit code."""
    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began:6.1f} s] {text}", markup=False)

    try:
        say(require_engine())
    except NoEngineError as error:
        console.print(f"compose-test needs a Docker engine with Compose: {error}", markup=False)
        return NO_ENGINE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(MISSED))  # so that the end below is reached
    with tempfile.TemporaryDirectory(prefix="oncommit-compose-") as folder:
        kept = Path(folder) / "secrets"
        subprocess.run([ROOT / "compose" / "secrets.sh", kept], check=True)
        project = Project(
            f"oncommit-test-{secrets.token_hex(4)}",
            {
                "ONCOMMIT_SECRETS": str(kept),
                "ONCOMMIT_SIMULATION": "true",
                # 0: any free one
                "ONCOMMIT_PORTAL_PORTS": "0",
                "ONCOMMIT_PROMETHEUS_PORT": "0",
                "ONCOMMIT_GRAFANA_PORT": "0",
            },
        )
        scenario = Scenario(project, kept, say)
        complete = _run(scenario, console)
    console.print(_table(scenario.claims))
    held = complete and all(claim.held for claim in scenario.claims)
    say("everything held" if held else "SOMETHING DID NOT HOLD")
    return HELD if held else MISSED


def _run(scenario: Scenario, console: Console) -> bool:
    """Run to the end, whatever happens; tell whether the end was reached."""
    project, complete = scenario.project, False
    try:
        scenario.run()
        complete = all(claim.held for claim in scenario.claims)
    except (EngineError, AssertionError, httpx.HTTPError, OSError, ValueError, LookupError) as error:
        console.print(f"{type(error).__name__}: {error}", markup=False, style="red")
    finally:
        if not complete:
            for name, text in project.logs(LOG_LINES).items():
                console.print(f"--- {name}\n{text}", markup=False)
        scenario.say("taking everything down")
        project.down()
        scenario.claim("left behind", expected=[], measured=project.left())
    return complete


def _table(claims: list[Claim]) -> Table:
    table = Table("what", "measured", "", title="containers")
    for claim in claims:
        measured = claim.measured if claim.held else f"{claim.measured}, not {claim.expected}"
        table.add_row(claim.text, str(measured), "held" if claim.held else "MISSED")
    return table


if __name__ == "__main__":
    sys.exit(main())
