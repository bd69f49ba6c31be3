"""`python -m benchmarks.bench`: let them take turns, print tables, and write RESULTS.md; exit 1 at a miss."""

import argparse
import inspect
import os
import signal
import sys
import time

from benchmarks.bench import contest, report
from benchmarks.bench.contest import Measure, Outcome
from benchmarks.bench.ground import QUICK, Ground, new_ground
from benchmarks.bench.measures import MEASURES

ROUNDS = 5


def main() -> int:
    """Measure what is asked for; return 0 when every floor is held and nobody failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", help="a measure, or the beginning of some names; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each measure, default {ROUNDS}")
    parser.add_argument("--size", type=float, default=1.0, help="of each turn's work; 5: catch-up of 200,000")
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the work, 2 rounds: does it run?"
    )
    parser.add_argument("--no-write", action="store_true", help="leave RESULTS.md and its plots as they are")
    parser.add_argument("--list", action="store_true", help="print the measures' names")
    given = parser.parse_args()
    chosen = [m for m in MEASURES if any(m.name.startswith(only) for only in given.only or [""])]
    if given.list:
        print("\n".join(measure.name for measure in MEASURES))
        return 0
    if not chosen:
        parser.error(f"no such measure; there are {', '.join(m.name for m in MEASURES)}")
    rounds = contest.LEAST_ROUNDS if given.quick else given.rounds
    write = not (given.quick or given.only or given.no_write)
    return _measure(chosen, rounds, QUICK if given.quick else given.size, hurried=given.quick, write=write)


def _measure(chosen: list[Measure], rounds: int, size: float, *, hurried: bool, write: bool) -> int:
    began, load, outcomes = time.monotonic(), [os.getloadavg()[0]], list[Outcome]()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {what}", file=sys.stderr, flush=True)

    with new_ground(size, hurried=hurried) as ground:
        for measure in chosen:
            outcomes.append(_one(measure, ground, rounds, say))
            print(report.terminal(outcomes[-1]), flush=True)
            load.append(os.getloadavg()[0])
        conditions = report.Conditions(
            servers=[ground.versions[key] for key in sorted(ground.versions)],
            minutes=(time.monotonic() - began) / 60,
            load=load,
            size=f"{rounds} rounds of size {size:g}" + (", fsync OFF" if hurried else ""),
            notes=_notes(chosen),
        )
    print(report.conditions_text(conditions))
    if write:
        from benchmarks.bench import plots  # noqa: PLC0415 -- only here is matplotlib needed

        folder = report.PAGE.parent / "plots"
        report.write(report.markdown(outcomes, conditions, plots.draw(outcomes, folder, report.PAGE.parent)))
    return int(not all(outcome.good() for outcome in outcomes))


def _notes(chosen: list[Measure]) -> dict[str, str]:
    """Return each module's account of its contestants, below the last of its measures."""
    last = {measure.entrances.__module__: measure.name for measure in chosen}
    return {name: inspect.getdoc(sys.modules[module]) or "" for module, name in last.items()}


def _one(measure: Measure, ground: Ground, rounds: int, say: contest.Say) -> Outcome:
    try:
        entrances = measure.entrances(ground)
    except Exception as error:  # noqa: BLE001 -- a measure that cannot begin does not keep others from it
        outcome = Outcome(measure, rounds)
        outcome.failures["all"] = f"{type(error).__name__}: {error}"
        say(f"{measure.name}: FAILED: {outcome.failures['all']}")
        return outcome
    return contest.run(measure, entrances, rounds, say)


if __name__ == "__main__":
    sys.exit(main())
