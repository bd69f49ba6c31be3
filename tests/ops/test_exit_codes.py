"""Exit codes: one table, the same in the docs, and each where it belongs. Ctrl-C is quiet from the start."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ops.exit_codes import EPILOG, INTERRUPTED, LIMIT_REACHED, MEANINGS, TROUBLE, USAGE
from ops.ports import free_port
from ops.submission import SubmissionError, papers
from runtime.settings import PREFIX

ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # a command imports for half a second of processor time; a busy machine has little


def environment(**env: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**clean, "PYTHONPATH": str(ROOT), **env}


def oncommit(folder: Path, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops", *arguments],
        env=environment(**env),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def test_the_runbook_has_the_same_table_and_every_code_is_its_own() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\d+)` \| (.+?) \|$", runbook, re.MULTILINE)) == {
        str(code): meaning for code, meaning in MEANINGS.items()
    }
    assert len({0, TROUBLE, USAGE, LIMIT_REACHED, INTERRUPTED}) == len(MEANINGS)
    assert all(f"{code} {meaning}" in EPILOG for code, meaning in MEANINGS.items())


def test_what_cannot_be_right_is_usage_and_who_does_not_answer_is_trouble(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    nobody = f"http://127.0.0.1:{free_port()}"
    known = {"ONCOMMIT_TOKEN": "oc_x", "ONCOMMIT_URL": nobody}
    for arguments, env, code, told in (
        (["submit", "a.txt"], {"ONCOMMIT_URL": nobody}, USAGE, "ONCOMMIT_TOKEN_FILE"),
        (["submit", "a.txt", "--url", "portal"], known, USAGE, "ONCOMMIT_URL"),
        (["submit", "nowhere"], known, USAGE, "no such file"),
        (["submit", "a.txt", "--patience", "0"], known, TROUBLE, f"no portal answers at {nobody}"),
        (["up"], {"ONCOMMIT_PORT": "seventy"}, USAGE, "ONCOMMIT_PORT"),
    ):
        done = oncommit(tmp_path, *arguments, env=env)
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr


def test_who_waits_is_told_at_once_for_whom_and_how_long(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    nobody = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "ops", "submit", "a.txt", "--url", nobody, "--token", "oc_x"]
    process = subprocess.Popen(command, env=environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()  # it comes while the command goes on
    assert f"no portal answers at {nobody}" in line
    assert re.search(r"Trying again for up to [56]\d s", line), line
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, more = process.communicate(timeout=SECONDS)
    assert process.returncode == INTERRUPTED
    assert "no portal answers" not in more  # once, not at each try


@pytest.mark.parametrize("command", ["run", "up", "demo", "submit"])
def test_ctrl_c_during_the_imports_is_quiet(tmp_path: Path, command: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "ops",
            command,
            *(["a.txt"] if command == "submit" else []),
        ],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = next(line for line in process.stderr if "| psycopg" in line or "|     psycopg" in line)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == INTERRUPTED, said
    assert "Traceback" not in said
    words = [line for line in said.splitlines() if not line.startswith("import time:")]
    assert words == ["stopped"], (seen, words)
    assert not (tmp_path / ".oncommit").exists()


def test_what_an_ended_stack_left_in_the_shell_is_named_with_what_to_do(tmp_path: Path) -> None:
    gone = f"127.0.0.1:{free_port()}"
    for env, told in (
        (
            {"ONCOMMIT_DATABASE_URL": f"postgresql://oncommit_operator:CANARY@{gone}/oncommit"},
            "oncommit_operator",
        ),
        ({"ONCOMMIT_DATABASE_URL": f"postgresql://me:CANARY@{gone}/x"}, "does not serve"),
        ({"ONCOMMIT_DATABASE_URL": "CANARY"}, "no PostgreSQL URL"),
        ({"ONCOMMIT_REDIS_URL": f"redis://:CANARY@{gone}/0"}, "nobody answers"),
    ):
        done = oncommit(tmp_path, "up", env=env)
        assert done.returncode == USAGE, done.stderr
        assert told in done.stderr
        assert next(iter(env)) in done.stderr
        assert "unset" in done.stderr
        assert "CANARY" not in done.stderr
        assert "Traceback" not in done.stderr


def test_a_file_name_with_spaces_that_was_split_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my own file.txt").write_text("x")
    Path("b.txt").write_text("x")
    with pytest.raises(SubmissionError, match=r"""quote 'my own file\.txt', with make as FILES="'my own"""):
        papers([Path("b.txt"), Path("my"), Path("own"), Path("file.txt")])
    with pytest.raises(SubmissionError, match=r"no such file or folder$"):
        papers([Path("b.txt"), Path("other")])
