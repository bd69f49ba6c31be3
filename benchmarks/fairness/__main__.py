"""`python -m benchmarks.fairness`: the three tables; exit 1 when a bound is missed.

`--full` has 1,000,000 messages waiting in the third, some 250 MB; `--write` puts all into docs/fairness.md.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.fairness import report
from benchmarks.fairness.beside import compare
from benchmarks.fairness.bounds import MEASURES, Row
from benchmarks.fairness.cost import measure
from benchmarks.fairness.stage import Stage
from tests.chaos.building import logs, whole_world

PARTS = ("bounds", "beside", "cost")


def main() -> int:
    """Measure what is asked for; return 0 when every bound holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="may be given several times")
    parser.add_argument("--full", action="store_true", help="1,000,000 waiting instead of 100,000")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/fairness.md")
    given = parser.parse_args()
    parts = given.only or PARTS
    if given.write and set(parts) != set(PARTS):
        parser.error("--write needs all parts")
    load, text, good = [os.getloadavg()[0]], "", True
    if {"bounds", "beside"} & set(parts):
        text, good = _with_workers(parts, load)
    if "cost" in parts:
        costs, megabytes = measure(full=given.full)
        table = report.cost_table(costs)
        print(table)
        text += f"### What a message costs\n\n{table}\nAll of it took {megabytes:.0f} MB in Redis.\n"
        good &= report.cost_holds(costs)
        load.append(os.getloadavg()[0])
    text += f"\n{report.conditions(load)}\n"
    print(report.conditions(load))
    if given.write:
        report.write(text)
    return int(not good)


def _with_workers(parts: tuple[str, ...] | list[str], load: list[float]) -> tuple[str, bool]:
    text, good = "", True
    with tempfile.TemporaryDirectory(prefix="oncommit-fairness-") as folder:
        Path(folder).chmod(0o711)
        with whole_world(Path(folder)) as world:
            stage = Stage(world)
            stage.start()
            try:
                if "bounds" in parts:
                    rows: list[Row] = []
                    for each in MEASURES:
                        _say(each.__name__)
                        rows += each(stage)
                    table = report.bounds_table(rows)
                    print(table)
                    text += f"### The bounds\n\n{table}\n"
                    good = all(row.holds for row in rows)
                    load.append(os.getloadavg()[0])
                if "beside" in parts:
                    table = report.beside_table(compare(stage, _say))
                    print(table)
                    text += f"### Beside stock Dramatiq\n\n{table}\n"
                    load.append(os.getloadavg()[0])
            except BaseException:
                for process, log in logs(world):
                    print(f"--- {process}\n{log[-2000:]}", file=sys.stderr)
                raise
    return text, good


def _say(what: str) -> None:
    print(f"… {what.replace('_', ' ')}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
