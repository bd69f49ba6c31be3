"""The mock renderer: deterministic, different for what differs, and it says what it cannot draw."""

import hashlib
import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from actors.errors import UnsupportedDocument
from actors.mock_renderer import PAGE, THUMBNAIL, render
from actors.sniff import HEAD_BYTES, sniff

PNG_HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 640, 480)


def put(folder: Path, name: str, content: bytes) -> tuple[Path, str]:
    path = folder / name
    path.write_bytes(content)
    return path, f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_the_same_document_gives_the_same_bytes_whatever_its_name(tmp_path: Path) -> None:
    one, digest = put(tmp_path, "one.txt", b"Quarterly report\n")
    two, _ = put(tmp_path, "two.md", b"Quarterly report\n")
    for kind in ("page", "thumbnail"):
        assert render(one, digest=digest, kind=kind) == render(two, digest=digest, kind=kind)


def test_documents_and_kinds_that_differ_look_different(tmp_path: Path) -> None:
    documents = [b"a", b"b", b"# a\n", PNG_HEAD, b"%PDF-1.7\n", b"\x00\x01\x02", b"PK\x03\x04macros"]
    pictures = [
        render(path, digest=digest, kind=kind)
        for kind in ("page", "thumbnail")
        for path, digest in (put(tmp_path, "d", d) for d in documents)
    ]
    assert len(set(pictures)) == 2 * len(documents)


@pytest.mark.parametrize(("kind", "size"), [("page", PAGE), ("thumbnail", THUMBNAIL)])
def test_a_preview_is_a_png_of_the_kinds_size(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    path, digest = put(tmp_path, "d", b"text\n" * 1000)
    with Image.open(io.BytesIO(render(path, digest=digest, kind=kind))) as image:
        assert (image.format, image.size) == ("PNG", size)


def test_an_empty_document_and_an_unknown_kind_are_permanent(tmp_path: Path) -> None:
    path, digest = put(tmp_path, "empty", b"")
    with pytest.raises(UnsupportedDocument, match="empty"):
        render(path, digest=digest, kind="page")
    path, digest = put(tmp_path, "d", b"x")
    with pytest.raises(UnsupportedDocument, match="kind"):
        render(path, digest=digest, kind="video")


@pytest.mark.parametrize(
    ("head", "type_", "fact"),
    [
        (PNG_HEAD, "png", "640 x 480 pixels"),
        (b"\x89PNG\r\n\x1a\n", "png", "without a size"),
        (b"%PDF-1.4\n%\xe2", "pdf", "version 1.4"),
        (b"%PDF-\xff\xff\xff", "pdf", "without a version"),
        (b"\xff\xd8\xff\xe0", "jpeg", ""),
        (b"# Title\n\nText\n", "markdown", "begins with 3 lines"),
        ("\ufeffgrüß".encode(), "text", "one line"),
        (b"\x00\xff", "other", "first bytes 00 ff"),
        (b"PK\x03\x04", "zip or office", ""),
    ],
)
def test_the_type_is_told_by_the_first_bytes(head: bytes, type_: str, fact: str) -> None:
    found = sniff(head)
    assert (found.type, found.fact) == (type_, fact)


def test_text_that_is_cut_inside_a_character_is_still_text() -> None:
    assert sniff(("€" * HEAD_BYTES).encode()[:HEAD_BYTES]).type == "text"


@given(st.binary(min_size=1, max_size=400))
def test_any_bytes_can_be_sniffed(head: bytes) -> None:
    assert sniff(head).type
