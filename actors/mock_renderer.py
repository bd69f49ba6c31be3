"""A renderer that draws what can be said about a document without interpreting it.

Deterministic: the same digest, kind and size give the same bytes (with the same Pillow), so a lost
preview can be made again, and tests can compare. It shows the document's short name (from its
digest), type, size and first lines, and a pattern drawn from the digest. Nothing is executed.
"""

import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from actors.errors import UnsupportedDocument
from actors.sniff import HEAD_BYTES, Sniffed, sniff

PAGE = (800, 1035)  # pixels: US letter at 94 dpi, a common preview
THUMBNAIL = (256, 331)  # the same shape
MARGIN = 48  # pixels
HEADING, BODY = 28, 16  # pixels of type
LINE = 22  # pixels from one line of the body to the next
COLUMNS = 84  # characters of the body that fit between the margins
CELLS = 8  # the pattern is a mirrored 8 x 8 grid
INK, PAPER, FAINT = (28, 30, 34), (252, 252, 250), (120, 124, 130)
_HEADING_FONT = ImageFont.load_default(HEADING)
_BODY_FONT = ImageFont.load_default(BODY)


def render(document: Path, *, digest: str, kind: str) -> bytes:
    """Return a PNG of `kind` (page or thumbnail) of the document with this digest (`sha256:` and hex).

    Raises:
        UnsupportedDocument: it is empty, or the kind is unknown.
        OSError: it cannot be read.

    """
    size = document.stat().st_size
    if size == 0:
        raise UnsupportedDocument("the document is empty")
    if kind not in {"page", "thumbnail"}:
        raise UnsupportedDocument(f"no preview of kind {kind[:40]}")
    with document.open("rb") as file:
        head = file.read(HEAD_BYTES)
    page = _draw(bytes.fromhex(digest.removeprefix("sha256:")), size, sniff(head))
    if kind == "thumbnail":
        page.thumbnail(THUMBNAIL, Image.Resampling.BOX)
    out = io.BytesIO()
    # Level 1: a third of the time of the default for a tenth more bytes. No date, no metadata.
    page.save(out, "PNG", compress_level=1)
    return out.getvalue()


def _draw(digest: bytes, size: int, sniffed: Sniffed) -> Image.Image:
    page = Image.new("RGB", PAGE, PAPER)
    draw = ImageDraw.Draw(page)
    _pattern(draw, digest)
    left = MARGIN + 176
    draw.text((left, MARGIN), digest.hex()[:12], fill=INK, font=_HEADING_FONT)
    draw.text((left, MARGIN + 48), f"{sniffed.type}   {sniffed.fact}", fill=FAINT, font=_BODY_FONT)
    draw.text((left, MARGIN + 72), f"{size:,} bytes", fill=FAINT, font=_BODY_FONT)
    top = MARGIN + 184
    draw.line((MARGIN, top, PAGE[0] - MARGIN, top), fill=FAINT)
    for row, line in enumerate(sniffed.lines[: (PAGE[1] - MARGIN - top) // LINE - 1]):
        draw.text((MARGIN, top + LINE * (row + 1)), _printable(line), fill=INK, font=_BODY_FONT)
    return page


def _pattern(draw: ImageDraw.ImageDraw, digest: bytes) -> None:
    """Draw a mirrored grid: the first bytes choose the colour, the others which cells are full."""
    colour = (64 + digest[0] // 2, 64 + digest[1] // 2, 64 + digest[2] // 2)
    cell = 144 // CELLS
    for index in range(CELLS * CELLS // 2):
        if digest[4 + index % 28] >> (index // 28) & 1:
            row, column = divmod(index, CELLS // 2)
            for x in (column, CELLS - 1 - column):
                corner = (MARGIN + x * cell, MARGIN + row * cell)
                draw.rectangle((*corner, corner[0] + cell - 1, corner[1] + cell - 1), fill=colour)


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line.expandtabs(4)[:COLUMNS])
