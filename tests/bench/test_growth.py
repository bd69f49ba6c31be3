"""What is left behind is told by name, and renderers alone may be fewer before than after."""

import mmap
import os
from pathlib import Path

import pytest

from benchmarks.growth import leftovers
from benchmarks.growth.leftovers import RENDERERS, Kept


def kept(**names: list[str]) -> Kept:
    return Kept({what: len(found) for what, found in names.items()}, dict(names))


def test_what_there_is_more_of_is_named() -> None:
    before = kept(files=["a"], sockets=["b", "c"])
    assert kept(files=["a"], sockets=["c"]).grown(before, 0) == []
    assert kept(files=["a", "pymp-x"], sockets=["c"]).grown(before, 0) == ["files: 1 -> 2: a, pymp-x"]
    assert kept(other=["d"]).grown(before, 0) == ["other: 0 -> 1: d"]


@pytest.mark.parametrize(("after", "grown"), [(4, False), (5, True)])
def test_renderers_may_be_as_many_as_there_are_threads(after: int, grown: bool) -> None:
    before = kept(**{RENDERERS: ["one is being replaced"]})
    assert bool(kept(**{RENDERERS: ["r"] * after}).grown(before, 4)) is grown


def test_shared_memory_is_counted_that_the_stack_has_or_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    for name in ("left", "used"):
        (tmp_path / name).write_bytes(b"x")
    with (tmp_path / "used").open("r+b") as file, mmap.mmap(file.fileno(), 1):
        assert sorted(leftovers._shared({os.getpid()})) == ["left", "used"]
        assert leftovers._shared(set()) == ["left"]  # this process is a stranger now
