"""`make evidence`: one folder with everything that a reviewer may cite of this commit.

    python -m benchmarks.evidence [--to evidence] [--only demo ...] [--take tests=report.xml ...]

A part is run, or taken from a report that exists, or it is MISSING and named so. Exit code 0 only when every
part is there, is about this commit, and held. `sha256sum --check MANIFEST` checks the folder.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.evidence import origin
from benchmarks.evidence.parts import ROOT, Outcome, Part, parts, run, take

MINUTES = 10.0


def main() -> int:
    """Gather; return 0 when nothing is missing and everything held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("evidence"), help="a folder that is made, or empty")
    parser.add_argument("--only", action="append", metavar="PART", help="run only these; default: all")
    parser.add_argument(
        "--take", action="append", default=[], metavar="PART=FILE", help="do not run: take it"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of chaos")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, written down")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    every = parts(given.minutes, seed)
    names = [part.name for part in every]
    taken = dict(entry.partition("=")[::2] for entry in given.take)
    if unknown := sorted({*taken, *(given.only or [])} - {*names}):
        parser.error(f"unknown parts: {', '.join(unknown)}; there are {', '.join(names)}")
    if given.to.exists() and any(given.to.iterdir()):
        parser.error(f"{given.to} is not empty: move it away, evidence is not mixed")
    wanted = given.only or [name for name in names if name not in taken]
    outcomes = gather(every, wanted, {k: Path(v) for k, v in taken.items()}, given.to, seed=seed)
    bad = [outcome for outcome in outcomes if not outcome.held]
    for outcome in outcomes:
        print(f"{outcome.name:<10} {outcome.how:<8} {outcome.verdict}")
    print(f"{given.to}: sha256sum --check MANIFEST")
    return int(bool(bad))


def gather(
    every: Sequence[Part],
    wanted: Sequence[str],
    taken: dict[str, Path],
    folder: Path,
    *,
    seed: int,
    root: Path = ROOT,
) -> list[Outcome]:
    """Fill `folder`; return what became of every part, in their order."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    before = origin.commit(root)
    outcomes: list[Outcome] = []
    for part in every:
        if part.name in taken:
            outcomes.append(take(part, taken[part.name], folder, origin.committed_at(before)))
        elif part.name in wanted:
            outcomes.append(run(part, folder, lambda text: print(text, file=sys.stderr, flush=True)))
        else:
            outcomes.append(Outcome(part.name, "MISSING", "neither run nor taken"))
    after = origin.commit(root)
    if {k: after[k] for k in ("id", "changed")} != {k: before[k] for k in ("id", "changed")}:
        outcomes.append(Outcome("commit", "ran", "the source changed while the parts ran"))
    elif before["changed"]:
        outcomes.append(Outcome("commit", "ran", f"{len(before['changed'])} files differ from the commit"))
    told = {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": before,
        "seed": seed,
        "versions": origin.versions(),
        "parts": [asdict(outcome) for outcome in outcomes],
    }
    (folder / "evidence.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_page(told, outcomes), encoding="utf-8")
    _manifest(folder)
    return outcomes


def _page(told: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    commit, versions = told["commit"], told["versions"]
    rows = "\n".join(
        f"| {o.name} | {o.how} | {o.verdict} | {o.file or ''} | {o.command or ''} | {o.seconds or ''} |"
        for o in outcomes
    )
    servers = ", ".join(f"{name}: {text}" for name, text in versions["servers"].items())
    return (
        f"# Evidence of oncommit {commit['id']}\n\n"
        f"{commit['subject']} ({commit['at']}); gathered {told['made_at']}, seed {told['seed']}.\n"
        f"{versions['cpus']} CPUs, {versions['memory_gb']} GB, {versions['system']}, "
        f"Python {versions['python']}; {servers}. Everything else is in evidence.json.\n\n"
        f"| part | how | verdict | file | command | s |\n|---|---|---|---|---|---|\n{rows}\n\n"
        "`sha256sum --check MANIFEST` checks that these are the files that were gathered.\n"
    )


def _manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "MANIFEST")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in files
    ]
    (folder / "MANIFEST").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
