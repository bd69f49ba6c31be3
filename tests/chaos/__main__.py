"""`python -m tests.chaos`: a random run; a failing one prints its seed and the command that repeats it."""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .building import logs, whole_world
from .faults import FAULTS
from .schedule import Outcome, run

MINUTES = 10.0


def main() -> int:
    """Run; return 0 when every invariant held."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the small disk is unmounted
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    parser.add_argument("--faults", default="", help=f"comma separated, of: {', '.join(FAULTS)}")
    parser.add_argument("--decoder", choices=["auto", "wal2json", "pgoutput"], default="auto")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    names = [name for name in given.faults.split(",") if name] or list(FAULTS)
    if unknown := sorted(set(names) - FAULTS.keys()):
        parser.error(f"unknown faults: {', '.join(unknown)}")
    again = f"python -m tests.chaos --minutes {given.minutes:g} --seed {seed}"
    again += f" --faults {given.faults}" if given.faults else ""
    again += f" --decoder {given.decoder}" if given.decoder != "auto" else ""
    try:
        return _run(seed, given, names, again)
    except BaseException:
        print(f"seed {seed}; again with: {again}", file=sys.stderr)  # noqa: T201
        raise


def _run(seed: int, given: argparse.Namespace, names: list[str], again: str) -> int:
    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began:6.1f} s] {text}", markup=False)

    folder = Path(tempfile.mkdtemp(prefix="oncommit-chaos-run-"))
    folder.chmod(0o711)
    say(f"seed {seed}; everything is in {folder}")
    with whole_world(folder) as world:
        world.start(ONCOMMIT_DECODER=given.decoder)
        decoder = world.server.decoder if given.decoder == "auto" else given.decoder
        say(f"the world stands: PostgreSQL {world.server.version} ({decoder})")
        outcome = run(world, seed, given.minutes, names, say)
        history = world.history.file
        if outcome.violations:
            for name, text in logs(world):
                (folder / f"{name}.whole.log").write_text(text, encoding="utf-8")
    console.print(_table(outcome))
    for violation in outcome.violations:
        console.print(violation, markup=False, style="red")
    console.print(f"seed {seed}; again with: {again}", markup=False)
    if outcome.violations:
        console.print(f"history: {history}", markup=False)
        return 1
    shutil.rmtree(folder)  # a run that held leaves nothing
    return 0


def _table(outcome: Outcome) -> Table:
    found = Table(title="chaos")
    for name in outcome.numbers():
        found.add_column(name, justify="right")
    found.add_row(*(str(value) for value in outcome.numbers().values()))
    return found


if __name__ == "__main__":
    sys.exit(main())
