"""Programs that the examples of docs/api.md need: what this machine has is run, and CI must have all."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Language = Literal["sh", "python", "javascript"]


@dataclass(frozen=True, slots=True)
class Program:
    """What runs an example, and what that needs besides."""

    runs: str
    needs: str


PROGRAMS: Mapping[Language, Program] = {
    "sh": Program("sh", "curl"),
    "python": Program(sys.executable, sys.executable),
    "javascript": Program("node", "node"),
}


def here() -> list[Language]:
    """Return the languages whose examples are run; in CI all, so that a missing program fails there."""
    return [
        language
        for language, program in PROGRAMS.items()
        if shutil.which(program.needs) or os.environ.get("CI") == "true"
    ]


def told() -> list[str]:
    """Return a sentence of the session's header for each example that is not run."""
    return [
        f"{program.needs}: NOT ON THIS MACHINE, the example in {language} of docs/api.md does not run"
        for language, program in PROGRAMS.items()
        if language not in here()
    ]
