"""Failpoints: the list of their names is that of the code, and no process starts with another."""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import failpoint_names
from runtime.settings import Settings
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
PACKAGES = ("portal", "ops", "relay", "actors", "broker", "db", "runtime")


def _used() -> Iterator[str]:
    """Yield the name in each call of `failpoint`, a constant of its module included."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            constants = {
                target.id: node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint":
                    [given] = node.args
                    if isinstance(given, ast.Constant):
                        yield str(given.value)
                    else:
                        assert isinstance(given, ast.Name), f"{file}:{node.lineno}"
                        yield str(constants[given.id])


def test_the_list_has_exactly_the_names_that_the_code_has() -> None:
    assert set(_used()) == failpoint_names.NAMES


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("relay.before_pubish=kill", "relay.before_publish"),
        ("relay.before_publish", "name=action"),
        ("=kill", "relay.before_publish"),
        ("relay.after_read=kil", "kill@N"),
        ("relay.after_read=kill@0", "kill@N"),
        ("relay.after_read=raise@second", "raise@N"),
        ("relay.after_read=pause:", "pause:FILE"),
    ],
)
def test_what_could_never_act_is_refused_with_what_there_is(text: str, known: str) -> None:
    with pytest.raises(ValueError, match="failpoint") as refusal:
        Settings(failpoints=text)
    assert known in str(refusal.value)


def test_what_is_armed_is_named_with_its_action() -> None:
    assert failpoint_names.armed("") == {}
    assert failpoint_names.armed(" relay.after_read=kill@2 , finish.before=pause:/x=y@z,") == {
        "relay.after_read": "kill@2",
        "finish.before": "pause:/x=y@z",
    }


def test_a_failpoint_that_kills_says_so() -> None:
    code = "from runtime.failpoints import failpoint; failpoint('relay.after_read'); print('lived')"
    env = {"ONCOMMIT_FAILPOINTS": "relay.after_read=kill"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""
    assert ended.stderr == b"failpoint relay.after_read: kill\n"


def test_a_pause_ends_when_its_file_goes_whatever_that_is_called(tmp_path: Path) -> None:
    gate = tmp_path / "gate@second"
    code = "from runtime.failpoints import failpoint; failpoint('relay.after_read'); print('lived')"
    env = {"ONCOMMIT_FAILPOINTS": f"relay.after_read=pause:{gate}"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE) as process:
        eventually(lambda: gate.exists() or process.poll() is not None)
        assert process.poll() is None, "it waits"
        gate.unlink()
        told, _ = process.communicate(timeout=30)
    assert (process.returncode, told) == (0, b"lived\n")
