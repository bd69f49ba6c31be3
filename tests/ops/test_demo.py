"""`oncommit demo`: it holds on a real machine, and it cannot hold by itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ops import proctable
from ops.binaries import FORCE
from ops.commands.demo import tell
from ops.demo.claims import Act, Claim, facts
from ops.demo.witness import Count, Witness
from runtime.settings import PREFIX
from support.kinds import local_kinds

ROOT = Path(__file__).parents[2]
DEMO_SECONDS = 170.0


def act(*claims: tuple[object, object]) -> Act:
    made = Act("an act")
    for expected, measured in claims:
        made.claim("a claim", expected=expected, measured=measured)
    return made


def test_a_claim_holds_when_it_was_measured_so() -> None:
    assert Claim("x", {202: 200}, {202: 200}).held
    assert not Claim("x", {202: 200}, {202: 199, 503: 1}).held


def test_an_act_holds_when_all_its_claims_do_and_it_claims_something() -> None:
    assert act((1, 1), (2, 2)).held
    assert not act((1, 1), (2, 3)).held
    assert not act().held


@pytest.mark.parametrize("as_json", [True, False])
def test_one_claim_that_does_not_hold_is_shown_and_decides(
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tell([act((1, 1))], 1.0, as_json=as_json)
    assert not tell([act((1, 1)), act((1, 1), ("expected words", "other words"))], 1.0, as_json=as_json)
    assert not tell([], 1.0, as_json=as_json)
    told = capsys.readouterr().out
    assert "expected words" in told
    assert "other words" in told


def test_the_facts_are_json() -> None:
    told = json.loads(json.dumps(facts([act(({202: 1}, {202: 2}))])))
    assert told["held"] is False
    assert told["acts"][0]["claims"][0]["measured"] == {"202": 2}


def log(path: Path, lines: Iterable[tuple[str, str, str]]) -> Witness:
    written = [
        json.dumps({"phase": p, "job": j, "dispatch": 1, "attempt": 1, "outcome": o}) for p, j, o in lines
    ]
    path.write_text("".join(f"{line}\n" for line in written))
    return Witness(path)


def test_the_witness_counts_once_only_what_started_once_and_was_rendered(tmp_path: Path) -> None:
    once = [("start", "a", ""), ("end", "a", "rendered")]
    twice = [*once, *once]
    cases = [
        (once, Count(1, 1)),
        (twice, Count(0, 2)),
        (once[:1], Count(0, 1)),
        ([once[0], ("end", "a", "DocumentError")], Count(0, 1)),
        ([], Count(0, 0)),
    ]
    for lines, expected in cases:
        assert log(tmp_path / "log", lines).count(["a"]) == expected
    assert log(tmp_path / "log", once).count(["b"]) == Count(0, 0)


def test_the_witness_sees_what_renders_now_and_no_half_line(tmp_path: Path) -> None:
    witness = log(tmp_path / "log", [("start", "a", ""), ("start", "b", ""), ("end", "a", "rendered")])
    with witness.path.open("a") as more:
        more.write('{"phase": "end", "job": "b"')
    assert witness.running() == 1
    assert Witness(tmp_path / "no log yet").running() == 0


def demo(*arguments: str, **env: str) -> tuple[subprocess.CompletedProcess[str], list[proctable.Entry]]:
    """Run the demonstration; return what it said, and which processes of it are left."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    mark = f"DEMO_UNDER_TEST_{os.getpid()}"
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", "demo", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), mark: "1", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_SECONDS,
    )
    return done, proctable.tagged(f"{mark}=1")


def test_everything_holds_and_nothing_is_left(servers_folder: Path) -> None:
    # The user's own servers are named, and must be left alone: nothing listens there.
    mine = {
        "ONCOMMIT_DATABASE_URL": "postgresql://127.0.0.1:1/x",
        "ONCOMMIT_REDIS_URL": "redis://127.0.0.1:1",
    }
    folder = servers_folder / "demo"
    folder.mkdir(mode=0o711)
    done, left = demo("--json", "--jobs", "20", **mine, **{FORCE: local_kinds()[0], "TMPDIR": str(folder)})
    assert done.returncode == 0, done.stderr + done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["held"] is True
    assert [len(one["claims"]) > 4 and one["held"] for one in told["acts"]] == [True] * 4
    measured = {c["claim"]: c["measured"] for c in told["acts"][1]["claims"]}
    assert measured["answers"] == {"202": 20}
    assert measured["rendered exactly once, by the render log"] == 20
    assert left == []
    assert list(folder.iterdir()) == []
