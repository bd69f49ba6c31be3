"""The witness: what was rendered, by the lines that the renderers wrote, without asking any table."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Count:
    """How often jobs were rendered.

    Attributes:
        once: jobs with exactly one start, which ended rendered.
        starts: renders that were started, of all jobs together.

    """

    once: int
    starts: int


class Witness:
    """Reads a render log (`ONCOMMIT_RENDER_LOG`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        """Return every whole line; one that is being written is left out."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def count(self, jobs: Collection[str]) -> Count:
        """Count the renders of these jobs."""
        starts: Counter[str] = Counter()
        rendered: Counter[str] = Counter()
        wanted = set(jobs)
        for line in self.lines():
            if line["job"] in wanted:
                if line["phase"] == "start":
                    starts[line["job"]] += 1
                elif line["outcome"] == "rendered":
                    rendered[line["job"]] += 1
        return Count(sum(starts[job] == 1 == rendered[job] for job in wanted), starts.total())

    def running(self) -> int:
        """Return how many renders have started and not ended."""
        open_renders: Counter[tuple[str, int, int]] = Counter()
        for line in self.lines():
            open_renders[line["job"], line["dispatch"], line["attempt"]] += (
                1 if line["phase"] == "start" else -1
            )
        return sum(count for count in open_renders.values() if count > 0)
