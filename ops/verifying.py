"""Verifying artifacts: is the preview of each succeeded job in the store, and whole? If not, make it again.

The renderer belongs to the workers, so a preview is made again by a process of theirs
(`python -m actors.repair`), which is talked to in lines of JSON.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self
from uuid import UUID

import orjson

from db.keeping import Artifact
from runtime.blobs import BlobStore


class State(StrEnum):
    """What was found of an artifact."""

    OK = "ok"
    MISSING = "missing"
    DAMAGED = "damaged"  # another size than the job's row says, or another content than its name says
    REPAIRED = "repaired"
    DIFFERS = "differs"  # made again it is not the same: by another version of the renderer
    DOCUMENT_MISSING = "document_missing"  # or damaged itself: nothing to make it from
    FAILED = "failed"  # the renderer refused it this time


#: After these a client gets the preview that its job names.
GOOD = frozenset({State.OK, State.REPAIRED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One job's artifact."""

    job: UUID
    kind: str
    state: State


class NoStoreError(Exception):
    """The folder of ONCOMMIT_BLOBS is not there: this machine does not see the workers' store."""


class RepairError(Exception):
    """The process that makes previews again did not answer."""


def open_store(folder: Path) -> BlobStore:
    """Open the store; never make an empty one, in which everything would be missing.

    Raises:
        NoStoreError: there is none.

    """
    if not folder.is_dir():
        raise NoStoreError(
            f"no store in {folder}: set ONCOMMIT_BLOBS to the folder that portal and workers share"
        )
    return BlobStore(folder)


def look(store: BlobStore, artifact: Artifact) -> State:
    """Return whether the artifact is there and whole; reads all of it."""
    stored = store.size(artifact.artifact)
    if stored is None:
        return State.MISSING
    whole = stored == artifact.artifact_size and store.verify(artifact.artifact)
    return State.OK if whole else State.DAMAGED


def verify(
    store: BlobStore, artifacts: Iterable[Artifact], repair: Callable[[Artifact], State] | None = None
) -> Iterator[Finding]:
    """Yield what is found of each job's artifact; one that several jobs share is read once.

    Raises:
        RepairError: see there.

    """
    known: dict[bytes, State] = {}  # 32 bytes a digest: a million distinct previews take some 150 MB
    for artifact in artifacts:
        digest = bytes.fromhex(artifact.artifact.removeprefix("sha256:"))
        state = known.get(digest)
        if state is None:
            state = look(store, artifact)
            if state is not State.OK and repair is not None:
                state = repair(artifact)
            known[digest] = state
        yield Finding(artifact.job, artifact.kind, state)


class Repairer:
    """A running `python -m actors.repair`; use it as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "actors.repair"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def repair(self, artifact: Artifact) -> State:
        """Make the artifact again.

        Raises:
            RepairError: the process ended.

        """
        wanted = {"document": artifact.document, "kind": artifact.kind, "artifact": artifact.artifact}
        if self._process.stdin is None or self._process.stdout is None:
            raise RepairError("the repair process has no pipes")
        try:
            self._process.stdin.write(orjson.dumps(wanted) + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError as error:
            raise RepairError("the repair process ended") from error
        if not answer:
            raise RepairError("the repair process ended")
        return State(orjson.loads(answer)["outcome"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
