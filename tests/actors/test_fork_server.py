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
LIMITS = Limits(memory_bytes=256 << 20, output_bytes=1 << 20)
child = RendererChild(LIMITS)
print("ready", flush=True)
sys.stdin.read()
child.close()
"""
# What NFS without a lock daemon says.
FAULTY = """
import errno, fcntl, os, pathlib
from runtime import logs
logs.configure("worker")
def no_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
FAILS = no_locks
"""
NOT_THERE = Path("/nonexistent")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short name: the path of a socket has some 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="oncommit-test-") as folder:
        yield Path(folder)


def start(temporary: Path, program: str = PROGRAM, stderr: int | None = None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
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
    link = folder / fork_server.MARK
    link.symlink_to(target)
    fork_server.sweep(temporary, NOT_THERE)
    assert folder.exists()
    os.close(fork_server.mark(folder))
    fork_server.sweep(temporary, NOT_THERE)
    assert folder.exists()
    link.unlink()
    fork_server.sweep(temporary, NOT_THERE)
    assert [*temporary.iterdir()] == [target]


@pytest.mark.parametrize("dies_first", [0, 1])
def test_a_folder_that_two_share_is_there_until_both_are_dead(temporary: Path, dies_first: int) -> None:
    folder = temporary / "pymp-shared"
    folder.mkdir()
    held = [fork_server.mark(folder), fork_server.mark(folder)]
    os.close(held.pop(dies_first))
    fork_server.sweep(temporary, NOT_THERE)
    assert folder.exists()
    os.close(held.pop())
    fork_server.sweep(temporary, NOT_THERE)
    assert [*temporary.iterdir()] == []


def test_a_process_never_sweeps_the_folder_that_it_uses(temporary: Path) -> None:
    folder = temporary / "pymp-own"
    folder.mkdir()
    os.close(fork_server.mark(folder))  # a sibling's that is dead
    fork_server.sweep(temporary, folder)
    assert folder.exists()


@pytest.mark.parametrize("fails", ["fcntl.flock", "pathlib.Path.rename", "pathlib.Path.glob"])
def test_a_file_system_that_cannot_lock_costs_one_line_and_no_render(temporary: Path, fails: str) -> None:
    program = FAULTY.replace("FAILS", fails) + PROGRAM.replace(
        "child =", "RendererChild(LIMITS).close()\nchild ="
    )
    with start(temporary, program, stderr=subprocess.PIPE) as process:
        (folder,) = temporary.iterdir()
        names = [path.name for path in folder.iterdir() if not path.is_socket()]
        assert process.stdin is not None
        process.stdin.close()
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
    assert process.returncode == 0
    assert [name for name in names if not name.startswith(fork_server.MARK)] == []
    assert len(lines) == 1, lines
    assert b"No locks available" in lines[0]
    assert [*temporary.iterdir()] == []
