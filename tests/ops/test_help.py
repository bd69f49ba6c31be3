"""What every command says of itself, found by walking the whole command line; and the shell's completion."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from ops.cli import app
from ops.exit_codes import EPILOG


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that is not a group, whoever adds it."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def every_command() -> list[tuple[str, ...]]:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    return list(commands(root))


def test_the_walk_finds_commands_at_every_depth() -> None:
    found = every_command()
    assert {("run",), ("prune",), ("teams", "create"), ("dispatch", "probe")} <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself_and_the_exit_codes(
    command: tuple[str, ...],
) -> None:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    text = " ".join(done.stdout.split())  # however wide the terminal, as one line
    assert done.exit_code == 0
    assert f"Example: oncommit {' '.join(command)}" in text
    assert EPILOG in text


ONCOMMIT = Path(sys.executable).with_name("oncommit")


def told(environment: dict[str, str], argv: list[str], executable: str | None = None) -> str:
    done = subprocess.run(
        argv, executable=executable, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -o default -F"), ("zsh", "compdef")])
def test_the_completion_of_the_shell_that_asks_is_printed(tmp_path: Path, shell: str, word: str) -> None:
    # A login shell, which its first `-` shows, is the one that $SHELL names: so no zsh is needed here.
    login = [f"-{shell}", "-c", f"{shlex.quote(str(ONCOMMIT))} --show-completion; exit $?"]
    script = told({"SHELL": f"/bin/{shell}", "HOME": str(tmp_path)}, login, executable="/bin/bash")
    assert word in script
    assert f"_ONCOMMIT_COMPLETE=complete_{shell}" in script


def test_the_script_of_bash_completes_groups_commands_and_options(tmp_path: Path) -> None:
    for words, completed in (("oncommit dea", "dead"), ("oncommit dead rep", "replay")):
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "HOME": str(tmp_path)}
        assert told(asked | {"_ONCOMMIT_COMPLETE": "complete_bash"}, [str(ONCOMMIT)]).split() == [completed]
    asked = {"COMP_WORDS": "oncommit dead replay --dr", "COMP_CWORD": "3", "HOME": str(tmp_path)}
    options = told(asked | {"_ONCOMMIT_COMPLETE": "complete_bash"}, [str(ONCOMMIT)])
    assert options.split() == ["--dry-run"]
