"""Say what a document is from its first bytes. Nothing is interpreted, opened or run."""

import string
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Enough for every signature and for the lines that fit on a page.
HEAD_BYTES = 16_384
_CONTROLS = frozenset(range(32)) - {9, 10, 12, 13, 27}
_LONGEST_CHARACTER = 4  # bytes of UTF-8
_MARKDOWN_STARTS = ("# ", "## ", "### ", "- ", "* ", "> ", "```", "1. ", "|")


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a document looks like: a `type` in a word or two, a fact about it, and its lines if it is text."""

    type: str
    fact: str
    lines: Sequence[str]


def sniff(head: bytes) -> Sniffed:
    """Return what the document that starts with `head` (at most HEAD_BYTES) looks like."""
    for signature, name, fact in _SIGNATURES:
        if head.startswith(signature):
            return Sniffed(name, fact(head), ())
    if (text := _text(head)) is None:
        return Sniffed("other", f"first bytes {head[:8].hex(' ')}", ())
    lines = text.splitlines()
    marks = sum(line.lstrip().startswith(_MARKDOWN_STARTS) for line in lines)
    kind = "markdown" if marks and marks * 4 >= len(lines) else "text"
    return Sniffed(kind, f"begins with {len(lines)} lines" if len(lines) != 1 else "one line", lines)


def _text(head: bytes) -> str | None:
    if _CONTROLS.intersection(head):
        return None
    try:
        return head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(head) < HEAD_BYTES or len(head) - error.start >= _LONGEST_CHARACTER:
            return None
        return head[: error.start].decode("utf-8-sig")  # the head ends inside a character


def _png_size(head: bytes) -> str:
    # PNG specification, 11.2.2: width and height are the first two fields of the first chunk, IHDR.
    ihdr_end = 24
    if len(head) < ihdr_end or head[12:16] != b"IHDR":
        return "without a size"
    width, height = struct.unpack(">II", head[16:24])
    return f"{width} x {height} pixels"


def _pdf_version(head: bytes) -> str:
    version = head[5:8].decode("ascii", errors="replace")
    return f"version {version}" if set(version) <= set(string.digits + ".") else "without a version"


def _nothing(_: bytes) -> str:
    return ""


_SIGNATURES: Sequence[tuple[bytes, str, Callable[[bytes], str]]] = (
    (b"\x89PNG\r\n\x1a\n", "png", _png_size),
    (b"%PDF-", "pdf", _pdf_version),
    (b"\xff\xd8\xff", "jpeg", _nothing),
    (b"GIF8", "gif", _nothing),
    (b"PK\x03\x04", "zip or office", _nothing),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old office", _nothing),
)
