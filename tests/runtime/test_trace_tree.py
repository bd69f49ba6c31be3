"""A trace file as a tree, by the command that docs/metrics.md names."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "trace_tree.py"


def draw(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_a_file_is_drawn_trace_by_trace(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    rows = [
        ("b", "a", "relay", "publish", 3),
        ("a", None, "portal", "accept", 1),
        ("c", "b", "worker", "claim", 5),
    ]
    file.write_text(
        "".join(
            json.dumps(
                {"trace": "t1", "span": span, "parent": parent, "process": process, "name": name,
                 "begun_ns": at * 1_000_000, "ended_ns": at * 1_000_000 + 500_000, "attributes": {}}
            ) + "\n"
            for span, parent, process, name, at in rows
        )
    )  # fmt: skip
    done = draw(file)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "t1",
            "      0.0 ms portal: accept  0.5 ms  {}",
            "      2.0 ms   relay: publish  0.5 ms  {}",
            "      4.0 ms     worker: claim  0.5 ms  {}",
        ],
    )
    assert draw(file, "t1").stdout == done.stdout
    assert (draw(file, "t2").returncode, draw(tmp_path / "none").returncode) == (1, 1)
