"""`python -m benchmarks.bounds`: measure, print medians beside the bounds; exit 1 when one is missed."""

import argparse
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bounds.measures import BOUNDS, MEASURES
from benchmarks.bounds.stage import Stage
from tests.chaos.world import logs, whole_world

TIMES = 3


def main() -> int:
    """Measure what is asked for; return 0 when every median is within its bound."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the small disk is unmounted
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="may be given several times")
    parser.add_argument("--times", type=int, default=TIMES)
    given = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name in given.only or list(MEASURES):
        for n in range(given.times):
            console.print(f"{name}, {n + 1} of {given.times}")
            for bound, value in _measure(name).items():
                found[bound].append(value)
                console.print(f"  {bound}: {value:.3f}")
    console.print(_table(found))
    return int(any(statistics.median(values) > BOUNDS[name] for name, values in found.items()))


def _measure(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="oncommit-bounds-") as folder:
        Path(folder).chmod(0o711)
        with whole_world(Path(folder)) as world:
            try:
                return dict(MEASURES[name](Stage(world)))
            except BaseException:
                for process, text in logs(world):
                    print(f"--- {process}\n{text[-2000:]}", file=sys.stderr)
                raise


def _table(found: dict[str, list[float]]) -> Table:
    table = Table(
        "what", "bound", "median", "all", "", title=f"bounds, {os.cpu_count()} x {platform.machine()}"
    )
    for name, values in found.items():
        median = statistics.median(values)
        every = " ".join(f"{value:.2f}" for value in sorted(values))
        table.add_row(
            name, f"{BOUNDS[name]:g}", f"{median:.2f}", every, "" if median <= BOUNDS[name] else "MISSED"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
