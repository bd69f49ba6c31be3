"""A small disk of a test's own, which it may fill to the brim: a tmpfs, where this process may mount one."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

#: The filler grows by so much at a time, then byte by byte: what is left is less than any block.
FILL_BYTES = 65_536
MakeDisk = Callable[[Path, int], "Disk"]


@cache
def mountable() -> bool:
    """Tell whether this process may mount; root may, except in a container without that privilege."""
    with tempfile.TemporaryDirectory() as folder:
        if _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder) != 0:
            return False
        return _run("umount", folder) == 0


def wanted() -> bool:
    """Tell whether the tests with a small disk run: where one can be had; in CI always, to fail there."""
    return mountable() or os.environ.get("CI") == "true"


def told() -> list[str]:
    """Return the sentence of the session's header when the tests with a small disk are left out."""
    return [] if wanted() else ["mount: NOT ALLOWED HERE, tests that fill a disk do not run"]


def _run(*command: str) -> int:
    return subprocess.run(command, check=False, capture_output=True).returncode


class Disk:
    """A file system of `size` bytes at `folder`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        folder.mkdir(exist_ok=True)
        assert _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", os.fspath(folder)) == 0

    def fill(self) -> None:
        """Take all that is left."""
        with self._filler.open("ab", buffering=0) as filler:
            for piece in (FILL_BYTES, 1):
                try:
                    while filler.write(b"\0" * piece) == piece:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink()

    def forbid_writing(self) -> None:
        """Make it read-only, as Linux makes a file system that has an error."""
        self._remount("ro")

    def allow_writing(self) -> None:
        """Undo that."""
        self._remount("rw")

    def _remount(self, how: str) -> None:
        assert _run("mount", "-o", f"remount,{how}", os.fspath(self.folder)) == 0

    def close(self) -> None:
        """Unmount it; whoever still has a file open there keeps only that."""
        assert _run("umount", "--lazy", os.fspath(self.folder)) == 0


@pytest.fixture
def disk() -> Iterator[MakeDisk]:
    """Make small disks: a folder, and a size in bytes."""
    made: list[Disk] = []

    def make(folder: Path, size: int) -> Disk:
        made.append(Disk(folder, size))
        return made[-1]

    yield make
    for one in made:
        one.close()
