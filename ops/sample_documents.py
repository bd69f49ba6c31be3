"""The sample documents: `compose/samples/` in the source tree, `ops/samples/` in an installed wheel."""

from pathlib import Path

PACKAGED = Path(__file__).parent / "samples"
IN_SOURCE = Path(__file__).parents[1] / "compose" / "samples"


def sample_documents() -> list[Path]:
    """Return the sample documents, by name: a text, a Markdown, a PNG, a PDF."""
    # The wheel has them in the package (force-include); the source tree keeps the one copy.
    folder = PACKAGED if PACKAGED.is_dir() else IN_SOURCE
    return sorted(path for path in folder.iterdir() if path.is_file())
