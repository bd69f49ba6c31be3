"""Every file that a page names is there: a page that points nowhere is older than the code."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
QUOTED = re.compile(r"`([^`\s]+)`")
FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|sql|lua|md|yaml|yml|toml|json|sh|png)|test_\w+\.py")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def named(page: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield (what a page names, where that may lie): from the root, or beside what was named before it."""
    text = page.read_text(encoding="utf-8")
    for found in LINK.finditer(text):
        if "://" not in found[1]:
            yield found[1], [page.parent / found[1]]
    for line in text.splitlines():
        before = ROOT
        for found in QUOTED.finditer(line):
            if FILE.fullmatch(found[1]):
                places = [ROOT / found[1], before / found[1], page.parent / found[1]]
                places += ROOT.glob(f"tests/**/{found[1]}") if "/" not in found[1] else []
                yield found[1], places
                before = next((place.parent for place in places if place.exists()), before)


def test_every_file_that_a_page_names_is_there() -> None:
    told = [(page.relative_to(ROOT), name, places) for page in PAGES for name, places in named(page)]
    assert len(told) > 30  # the pages are read, and the patterns find something
    gone = [f"{page}: {name}" for page, name, places in told if not any(place.exists() for place in places)]
    assert gone == []
