"""Every `oncommit` command that a page names exists, with each option that the page gives it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"`(oncommit [a-z][^`]*)`")
IN_CONTAINER = "docker compose run --rm oncommit "


def lines(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip().replace(IN_CONTAINER, "oncommit ")
            while re.match(r"[A-Z_]+=\S* ", command):
                command = command.partition(" ")[2].lstrip()
            if command.startswith("oncommit "):
                yield command
    yield from (found[1] for found in QUOTED.finditer(BLOCK.sub("", text).replace("\n", " ")))


COMMANDS = sorted({command for page in PAGES for command in lines(page)})


def test_the_pages_are_read() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_page_is_understood(command: str) -> None:
    # `--help` is judged last: an unknown command or option before it is told with exit code 2.
    argv = [word for word in shlex.split(command, comments=True)[1:] if word != "..."]
    done = CliRunner().invoke(app, [*argv, "--help"])
    assert done.exit_code == 0, done.output
