"""What is to be submitted: files become orders, and an order has the same key whenever it is given."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

TITLE_CHARACTERS = 200  # what the portal takes
EMPTY = "the file is empty, so there is nothing to preview: leave it out"
PRIORITY = 5  # the portal's own default: the middle


class Kind(StrEnum):
    """What to draw."""

    page = "page"
    thumbnail = "thumbnail"


class SubmissionError(ValueError):
    """What was named cannot be submitted; the message says why."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A file to submit, and the title that its jobs get: its name, below the folder that was named."""

    file: Path
    title: str


@dataclass(frozen=True, slots=True)
class Order:
    """One job to be asked for."""

    document: str
    kind: Kind
    priority: int
    title: str

    def key(self, run_id: str) -> str:
        """Return the Idempotency-Key: equal for equal orders of one run, in whatever process.

        So an interrupted run that is started again gets the jobs that it had, and adds what was missing.
        """
        meaning = [run_id, self.document, str(self.kind), self.priority, self.title]
        return "submit-" + hashlib.sha256(json.dumps(meaning).encode()).hexdigest()

    def body(self) -> dict[str, object]:
        """Return the JSON body of POST /v1/jobs."""
        return {
            "document": self.document,
            "kind": str(self.kind),
            "priority": self.priority,
            "title": self.title,
        }


def batch_key(orders: Sequence[Order], run_id: str) -> str:
    """Return the Idempotency-Key of a batch: equal for the same orders, in the same order, of one run."""
    keys = json.dumps([order.key(run_id) for order in orders])
    return "submit-batch-" + hashlib.sha256(keys.encode()).hexdigest()


def papers(paths: Sequence[Path]) -> list[Paper]:
    """Return the files to submit: each file named, and the files below each folder named, by name.

    What starts with a dot inside a folder is left out, and links to folders are not followed.

    Raises:
        SubmissionError: a path is not there, is neither file nor folder, or a folder holds no file.

    """
    found: list[Paper] = []
    for path in paths:
        if path.is_dir():
            below = [Paper(file, _title(file.relative_to(path))) for file in sorted(_files(path))]
            if not below:
                raise SubmissionError(f"{path}: no file in this folder")
            found += below
        elif path.is_file():
            found.append(Paper(path, _title(Path(path.name))))
        else:
            why = "not a regular file" if path.exists() else f"no such file or folder{_split(path, paths)}"
            raise SubmissionError(f"{path}: {why}")
    # A file that was named twice is one order, as its key would say anyway.
    return list({paper.file.absolute(): paper for paper in found}.values())


def _split(part: Path, paths: Sequence[Path]) -> str:
    """Return a hint when `part` looks like a piece of a file name with spaces that was not quoted."""
    words = [str(path) for path in paths]
    for start in range(len(words)):
        for end in range(start + 2, len(words) + 1):
            whole = " ".join(words[start:end])
            if str(part) in words[start:end] and Path(whole).exists():
                return f"; quote {whole!r}, with make as FILES=\"'{whole}'\""
    return ""


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise SubmissionError(f"{folder}: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink():
                yield from _files(entry)
        elif entry.is_file():
            yield entry


def _title(name: Path) -> str:
    # A name that is no UTF-8 becomes readable; of a long one the end tells more than the start.
    text = name.as_posix().encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= TITLE_CHARACTERS else "..." + text[3 - TITLE_CHARACTERS :]
