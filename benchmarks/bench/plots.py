"""One picture for each contest: every contestant's median as a bar, least to most as its whisker."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.bench.contest import Outcome, spread

OURS, OTHERS = "#1f6feb", "#9aa4b2"
BAR_INCHES, HEAD_INCHES, WIDTH_INCHES, DOTS_PER_INCH = 0.38, 1.1, 8.0, 110


def draw(outcomes: Sequence[Outcome], folder: Path, beside: Path) -> Mapping[str, str]:
    """Write a PNG for each contest that gave figures; return their paths as seen from the folder `beside`.

    Raises:
        ImportError: matplotlib is not installed; `make bench` installs it.

    """
    import matplotlib as mpl  # noqa: PLC0415 -- only `make bench` installs it

    mpl.use("Agg")
    folder.mkdir(exist_ok=True)
    written: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.values:
            path = folder / f"{outcome.measure.name}.png"
            _draw(outcome, path)
            written[outcome.measure.name] = path.relative_to(beside).as_posix()
    return written


def _draw(outcome: Outcome, path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 -- as above

    shown, names = outcome.measure.figures, list(outcome.values)
    height = HEAD_INCHES + BAR_INCHES * len(names)
    chart, axes = plt.subplots(1, len(shown), figsize=(WIDTH_INCHES, height), squeeze=False, sharey=True)
    for place, figure in zip(axes[0], shown, strict=True):
        for at, name in enumerate(names):
            middle, least, most = spread(outcome.of(name, figure.key))
            place.barh(
                at, middle, color=OURS if name.startswith("oncommit") else OTHERS,
                xerr=[[middle - least], [most - middle]], ecolor="#444444", capsize=3,
            )  # fmt: skip
            place.annotate(f" {middle:,.3g}" if middle < 1000 else f" {middle:,.0f}", (most, at), va="center")
        place.set_yticks(range(len(names)), names)
        place.invert_yaxis() if place is axes[0][0] else None
        place.margins(x=0.18)
        better = "less is better" if figure.less else "more is better"
        place.set_xlabel(f"{figure.unit} ({better})" if len(shown) == 1 else f"{figure.key}, {figure.unit}")
        place.spines[["top", "right"]].set_visible(False)
    chart.suptitle(outcome.measure.title, fontsize=10)
    chart.tight_layout()
    chart.savefig(path, dpi=DOTS_PER_INCH)
    plt.close(chart)
