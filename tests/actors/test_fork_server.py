"""What a killed worker leaves of its fork server is swept by the next one; what lives is left alone."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import fork_server

ROOT = Path(__file__).parents[2]
# A worker's renderers, without the worker: says that they are there, and goes on until it is told to end.
PROGRAM = """
import sys
from actors.child import RendererChild
from actors.renderer import Limits
child = RendererChild(Limits(memory_bytes=256 << 20, output_bytes=1 << 20))
print("ready", flush=True)
sys.stdin.read()
child.close()
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short name: the path of a socket has some 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="oncommit-test-") as folder:
        yield Path(folder)


def start(temporary: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_killed_worker_leaves_a_folder_that_the_next_one_removes(temporary: Path) -> None:
    killed = start(temporary)
    (left,) = temporary.iterdir()
    killed.kill()
    killed.communicate()
    assert any(path.is_socket() for path in left.iterdir())
    process = start(temporary)
    (own,) = temporary.iterdir()
    assert own != left
    end(process)
    assert [*temporary.iterdir()] == []


def test_a_living_workers_folder_and_another_programs_are_left_alone(temporary: Path) -> None:
    other = temporary / "pymp-other"
    other.mkdir()
    first = start(temporary)
    (folder,) = {*temporary.iterdir()} - {other}
    second = start(temporary)
    assert {folder, other} < {*temporary.iterdir()}
    end(second)
    end(first)
    assert [*temporary.iterdir()] == [other]


def test_what_is_not_a_mark_of_ours_removes_nothing(temporary: Path) -> None:
    folder = temporary / "pymp-link"
    folder.mkdir()
    target = temporary / "target"
    target.touch()
    (folder / fork_server.MARK).symlink_to(target)
    fork_server.sweep(temporary)
    assert folder.exists()
    held = fork_server.mark(folder)
    fork_server.sweep(temporary)
    assert folder.exists()
    os.close(held)
    fork_server.sweep(temporary)
    assert [*temporary.iterdir()] == [target]
