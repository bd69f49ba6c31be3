"""`make evidence`: whatever is missing, old, failed or changed is named, and nothing is made up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evidence.__main__ import gather
from benchmarks.evidence.parts import Part, parts

GOOD_TESTS = '<testsuites><testsuite tests="3" failures="0" errors="0" skipped="1"/></testsuites>'


def part(name: str, text: str, code: int = 0) -> Part:
    argv = [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]
    return Part(name, f"{name}.txt", argv, r"^all is well")


TESTS = Part(
    "tests", "tests.xml",
    [sys.executable, "-c", f"from pathlib import Path; Path('{{file}}').write_text({GOOD_TESTS!r})"],
    "", writes=True,
)  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "file").write_text("x")
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "a subject"]):
        subprocess.run(["git", "-C", root, *command], check=True)
    return root


def test_parts_that_ran_are_there_with_commit_versions_and_digests(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    outcomes = gather(
        [part("demo", "all is well"), TESTS], ["demo", "tests"], {}, folder, seed=7, root=repository
    )
    assert [(o.name, o.how, o.verdict) for o in outcomes] == [
        ("demo", "ran", "held"),
        ("tests", "ran", "held"),
    ]
    told = json.loads((folder / "evidence.json").read_text())
    head = subprocess.run(
        ["git", "-C", repository, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (told["commit"]["id"], told["commit"]["changed"], told["seed"]) == (head, [], 7)
    assert told["versions"]["packages"]["dramatiq"].startswith("2.2")
    assert told["versions"]["servers"]["valkey"].startswith("Valkey server")
    assert told["parts"][1]["counts"] == {"tests": 3, "failures": 0, "errors": 0, "skipped": 1}
    assert (folder / "demo.txt").read_text() == "all is well\n"
    check = ["sha256sum", "--check", "--strict", "--quiet", "MANIFEST"]
    subprocess.run(check, cwd=folder, check=True)
    listed = {line.split("  ", 1)[1] for line in (folder / "MANIFEST").read_text().splitlines()}
    assert listed == {path.name for path in folder.iterdir()} - {"MANIFEST"}
    with (folder / "demo.txt").open("a") as file:
        file.write("and more")
    assert subprocess.run(check, cwd=folder, check=False, capture_output=True).returncode == 1


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (part("demo", "all is well", 3), "it ended with 3"),
        (part("demo", "nothing to say"), "it does not say '^all is well'"),
        (part("demo", "all is well\nmemory: NOT so"), "it says 'NOT'"),
        (part("demo", "all is well\nresync | 2 s | MISSED"), "it says 'MISSED'"),
    ],
)
def test_a_part_that_did_not_hold_is_kept_and_named(
    made: Part, verdict: str, repository: Path, tmp_path: Path
) -> None:
    (outcome,) = gather([made], ["demo"], {}, tmp_path / "e", seed=1, root=repository)
    assert (outcome.how, outcome.verdict, outcome.held) == ("ran", verdict, False)
    assert (tmp_path / "e" / "demo.txt").stat().st_size > 0


def test_what_was_neither_run_nor_taken_is_missing(repository: Path, tmp_path: Path) -> None:
    absent = {"b": tmp_path / "no-such-file"}
    (ran, gone, never) = gather(
        [part("a", "all is well"), part("b", ""), part("c", "")],
        ["a"],
        absent,
        tmp_path / "e",
        seed=1,
        root=repository,
    )
    assert ran.held
    assert (gone.how, gone.verdict) == ("MISSING", "there is no no-such-file to take")
    assert (never.how, never.verdict, never.held) == ("MISSING", "neither run nor taken", False)
    page = (tmp_path / "e" / "README.md").read_text()
    assert "| c | MISSING | neither run nor taken |" in page


def test_a_report_is_taken_and_one_older_than_the_commit_is_not_about_it(
    repository: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(GOOD_TESTS)
    (fresh,) = gather([TESTS], [], {"tests": report}, tmp_path / "fresh", seed=1, root=repository)
    assert (fresh.how, fresh.verdict, fresh.counts["tests"]) == ("taken", "held", 3)
    os.utime(report, (1_000_000_000, 1_000_000_000))
    (old,) = gather([TESTS], [], {"tests": report}, tmp_path / "old", seed=1, root=repository)
    assert (old.verdict, old.held) == ("it is older than the commit", False)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('<testsuite tests="3" failures="1" errors="0"/>', "1 failures, 0 errors"),
        ('<testsuite tests="3" failures="0" errors="2"/>', "0 failures, 2 errors"),
        ('<testsuite tests="3" skipped="3"/>', "no test ran"),
        ("<testsuite", "it is no JUnit report"),
    ],
)
def test_a_report_of_tests_is_judged_by_its_counts(text: str, verdict: str) -> None:
    assert TESTS.judge(text) == verdict


def test_a_source_that_differs_from_the_commit_is_named(repository: Path, tmp_path: Path) -> None:
    (repository / "file").write_text("y")
    outcomes = gather([part("a", "all is well")], ["a"], {}, tmp_path / "e", seed=1, root=repository)
    assert [(o.name, o.verdict) for o in outcomes if not o.held] == [
        ("commit", "1 files differ from the commit")
    ]


def test_the_parts_and_only_they_can_be_asked_for(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.evidence", "--to", str(tmp_path / "e"), "--only", "nothing"]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(part.name in done.stderr for part in parts(1, 1))
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "old").touch()
    argv[-1] = "demo"
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
