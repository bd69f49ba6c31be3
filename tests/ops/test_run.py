"""`oncommit run`, as a newcomer types it: real servers, real processes, a folder of its own."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from PIL import Image

from ops import proctable
from ops.binaries import FORCE
from ops.commands.run import TOKEN_FILE
from ops.exit_codes import LIMIT_REACHED
from ops.sample_documents import sample_documents
from runtime.settings import PREFIX
from support.kinds import kinds
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 90.0


class Run:
    """A running `oncommit run`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.said = folder / "said"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        env = {**clean, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", FORCE: kinds()[0][-1]}
        with self.said.open("w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "run", *arguments],
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.seen: set[tuple[int, int]] = set()

    def words(self) -> str:
        return self.said.read_text(encoding="utf-8")

    def note_family(self) -> None:
        """Remember every process that it has started, by pid and start time."""
        self.seen |= {(e.pid, e.started) for e in proctable.family(self.process.pid)}

    def wait(self) -> int:
        """Return its code when it has ended."""

        def ended() -> bool:
            self.note_family()
            return self.process.poll() is not None

        eventually(ended, timeout=RUN_SECONDS, every=0.2, describe=self.words)
        return self.process.returncode

    def left(self) -> list[int]:
        """Return the pids of those that still run."""
        found = [(pid, started, proctable.find(pid)) for pid, started in self.seen]
        return [pid for pid, started, entry in found if entry is not None and entry.started == started]


def test_documents_are_rendered_and_nothing_is_left_but_the_folder(tmp_path: Path) -> None:
    (tmp_path / "my own.txt").write_text("a document of mine\n", encoding="utf-8")
    run = Run(tmp_path, "--exit-when-done", "my own.txt")
    assert run.wait() == 0, run.words()
    titles = [*(file.name for file in sample_documents()), "my own.txt"]
    for title in titles:
        for kind in ("page", "thumbnail"):
            assert f"{title} ({kind}): succeeded, attempts 1," in run.words()
            with Image.open(tmp_path / ".oncommit" / "previews" / f"{title}.{kind}.png") as image:
                assert image.format == "PNG"
    assert "10 of 10 jobs succeeded" in run.words()
    assert len(run.seen) > 4
    assert run.left() == []

    _serves_until_interrupted(tmp_path)


def _serves_until_interrupted(folder: Path) -> None:
    """Run again in the same folder, without patience for the jobs: the token is the same, the code tells."""
    token = folder / ".oncommit" / "secrets" / TOKEN_FILE
    before = token.read_text(encoding="utf-8")
    assert token.stat().st_mode & 0o777 == 0o600
    run = Run(folder, "--timeout", "0")
    eventually(lambda: "Ctrl-C stops everything" in run.words(), timeout=RUN_SECONDS, describe=run.words)
    run.note_family()
    assert token.read_text(encoding="utf-8") == before
    curl = next(line for line in run.words().splitlines() if line.startswith("  curl "))
    url = shlex.split(curl)[-1]
    headers = {"Authorization": f"Bearer {before.strip()}"}

    def status() -> str:
        return str(httpx.get(url, headers=headers, trust_env=False).json()["status"])

    assert eventually(lambda: status() == "succeeded")
    run.process.send_signal(signal.SIGINT)
    # Not every job had succeeded when it stopped waiting.
    assert run.wait() == LIMIT_REACHED
    assert run.left() == []


def test_a_file_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    run = Run(tmp_path, "nowhere.txt")
    assert run.wait() == 2
    assert "nowhere.txt: no such file" in run.words()
    assert not (tmp_path / ".oncommit").exists()
