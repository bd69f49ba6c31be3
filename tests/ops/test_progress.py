"""Progress bars: seen by whoever looks at a terminal, and by nobody else."""

import os
import pty
import subprocess
import sys
from contextlib import suppress

from support.desk import Desk

WHY = ("--reason", "the printer is back")


def on_a_terminal(desk: Desk, *arguments: str) -> tuple[int, str]:
    """Run the command with a terminal for its standard error; return its code and what was seen there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", *arguments],
        env=desk.env | {"TERM": "xterm"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # EIO: the last of the other side is closed
        while part := os.read(ours, 65_536):
            seen += part
    os.close(ours)
    process.communicate(timeout=60)
    return process.returncode, seen.decode()


def test_a_replay_shows_its_progress_on_a_terminal(desk: Desk) -> None:
    desk.dead(6)
    code, seen = on_a_terminal(desk, "dead", "replay", "--all", "--rate", "2/s", *WHY)
    assert code == 0, seen
    for told in ("replay", "\x1b[", "2/6", "6/6"):
        assert told in seen
    assert desk.replays().keys() == {row[0] for row in desk.admin.execute("SELECT id FROM jobs").fetchall()}


def test_a_replay_shows_none_in_a_pipe_and_none_with_json(desk: Desk) -> None:
    desk.dead(4)
    done = desk.run("dead", "replay", "--all", "--limit", "2", *WHY)
    assert (done.returncode, done.stdout) == (0, "2 jobs replayed, 2 by the run\n")
    assert [line.split(" ", 1)[0] for line in done.stderr.splitlines()] == ["run"], "by which name it goes on"
    code, seen = on_a_terminal(desk, "dead", "replay", "--all", "--afresh", "--json", *WHY)
    assert code == 0, seen
    assert len(seen.splitlines()) == 1
    assert not any(told in seen for told in ("\x1b[", "1/2", "2/2"))
