"""The parts of the evidence: each is run here, or taken from a report that was made before, or missing."""

import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# What the programs themselves say when something did not hold; a report that was taken has no exit code.
BAD = re.compile(r"\bMISSED\b|\bNOT\b|\bviolation:|Traceback \(most recent call last\)")

TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile")  # as `make test` does


@dataclass(frozen=True, slots=True)
class Part:
    """One part: `argv` prints the report, or writes it to `{file}`; `good` finds what a whole one holds."""

    name: str
    file: str
    argv: Sequence[str]
    good: str
    writes: bool = False

    def judge(self, text: str) -> str:
        """Return `held`, or what is wrong with this report."""
        if self.file.endswith(".xml"):
            return _judge_tests(text)
        if found := BAD.search(text):
            return f"it says {found[0]!r}"
        return "held" if re.search(self.good, text, re.MULTILINE) else f"it does not say {self.good!r}"


@dataclass(slots=True)
class Outcome:
    """What became of a part. `how`: ran, taken or MISSING; `verdict`: held, or why not."""

    name: str
    how: str
    verdict: str
    file: str | None = None
    command: str | None = None
    exit_code: int | None = None
    seconds: float | None = None
    made_at: str | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def held(self) -> bool:
        """Whether it is there and says that everything was as it has to be."""
        return self.verdict == "held"


def parts(minutes: float, seed: int) -> list[Part]:
    """Return all parts; chaos goes on for `minutes`, chaos and the tests' random choices follow `seed`."""
    python = sys.executable
    module = [python, "-m"]
    return [
        Part("demo", "demo.txt", [*module, "ops.cli", "demo"], r"^Everything held"),
        Part(
            "tests", "tests.xml",
            [*module, "pytest", *TWO_AT_A_TIME, f"--hypothesis-seed={seed}", "--junit-xml={file}"],
            "", writes=True,
        ),
        Part(
            "chaos", "chaos.txt", [*module, "tests.chaos", "--minutes", f"{minutes:g}", "--seed", str(seed)],
            r"^seed \d+; again with:",
        ),
        Part(
            "trace", "trace.txt",
            [*module, "pytest", "-s", "-q", "tests/runtime/test_tracing.py", "-k", "one_trace"],
            r"ms portal: POST /v1/jobs",
        ),
        Part("bounds", "bounds.txt", [*module, "benchmarks.bounds"], r"\bbounds\b"),
        Part("fairness", "fairness.txt", [*module, "benchmarks.fairness"], r"\| what"),
        Part("races", "races.txt", [*module, "benchmarks.races"], r"keys with exactly one job"),
        Part("hostile", "hostile.txt", [*module, "benchmarks.hostile"], r"the portal's memory:"),
        Part("replay", "replay.txt", [*module, "benchmarks.replay"], r"dead jobs replayed"),
        Part("streams", "streams.txt", [*module, "benchmarks.streams"], r"transactions a second, all open"),
        Part(
            "growth", "growth.txt",
            [*module, "benchmarks.growth", "--jobs", "200000", "--restarts", "50"], r"outbox with indexes",
        ),
        Part("cost", "cost.txt", [*module, "benchmarks.cost_per_job"], r"WAL"),
        Part("bench", "bench.txt", [*module, "benchmarks.bench", "--no-write"], r"rounds of size"),
        Part("compose", "compose.txt", [*module, "tests.compose"], r"everything held$"),
        Part("audit", "audit.txt", ["make", "audit"], r"No known vulnerabilities found"),
    ]  # fmt: skip


def run(part: Part, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Run a part, its report into `folder`; nothing is thrown away, also of a failure."""
    target = folder / part.file
    argv = [word.replace("{file}", str(target)) for word in part.argv]
    shown = " ".join("python" if word == sys.executable else word for word in part.argv)
    say(f"{part.name}: {shown}")
    began, started = datetime.now(UTC), time.monotonic()
    log = folder / f"{part.name}.log" if part.writes else target
    with log.open("wb") as out:
        quiet: dict[str, Any] = {"stdout": out, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(argv, cwd=ROOT, check=False, **quiet)  # noqa: S603 -- our own programs
    seconds = round(time.monotonic() - started, 1)
    if not target.exists():
        return Outcome(
            part.name, "MISSING", f"it ended with {done.returncode} and wrote no report", command=shown
        )
    verdict = part.judge(target.read_text(encoding="utf-8", errors="replace"))
    if done.returncode:
        verdict = f"it ended with {done.returncode}" + ("" if verdict == "held" else f"; {verdict}")
    return Outcome(
        part.name, "ran", verdict, part.file, shown, done.returncode, seconds,
        began.isoformat(timespec="seconds"), _counts(target),
    )  # fmt: skip


def take(part: Part, source: Path, folder: Path, commit_at: datetime) -> Outcome:
    """Copy a report that was made before; one that is older than the commit is not about it."""
    if not source.is_file():
        return Outcome(part.name, "MISSING", f"there is no {source.name} to take")
    target = folder / part.file
    target.write_bytes(source.read_bytes())
    made = datetime.fromtimestamp(source.stat().st_mtime, UTC)
    verdict = part.judge(target.read_text(encoding="utf-8", errors="replace"))
    if made < commit_at:
        verdict = "it is older than the commit" + ("" if verdict == "held" else f"; {verdict}")
    return Outcome(
        part.name, "taken", verdict, part.file,
        made_at=made.isoformat(timespec="seconds"), counts=_counts(target),
    )  # fmt: skip


def _suites(text: str) -> dict[str, int]:
    names = ("tests", "failures", "errors", "skipped")
    suites = list(ET.fromstring(text).iter("testsuite"))  # noqa: S314 -- pytest's own
    return {name: sum(int(suite.get(name, 0)) for suite in suites) for name in names}


def _judge_tests(text: str) -> str:
    try:
        counts = _suites(text)
    except ET.ParseError:
        return "it is no JUnit report"
    if counts["failures"] + counts["errors"]:
        return f"{counts['failures']} failures, {counts['errors']} errors"
    return "held" if counts["tests"] > counts["skipped"] else "no test ran"


def _counts(target: Path) -> dict[str, int]:
    if target.suffix != ".xml":
        return {}
    try:
        return _suites(target.read_text(encoding="utf-8", errors="replace"))
    except ET.ParseError:
        return {}
