"""The history of a run: every request, answer, fault, process's end, render and event, in order of time.

Written down while it happens, so a run that is killed leaves it, too; what the renderers and the
database know is added at the end.
"""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class History:
    """Entries have `at` (seconds since 1970), `what`, and the fields that `what` has.

    | what                  | fields                                                      |
    |-----------------------|-------------------------------------------------------------|
    | request               | key, team, path, jobs, attempt of this request              |
    | answer                | key, team, path, status, kind (media type), id, replayed, jobs, seconds |
    | no_answer             | key, team, why                                              |
    | inject                | fault, interrupts, touches                                  |
    | heal                  | fault                                                       |
    | failpoint             | fault, process, fired, since (when it was armed)            |
    | ended                 | process, code, expected                                     |
    | pausing, paused, resuming, resumed | team                                           |
    | render                | a line of the render log                                    |
    | event                 | a row of job_events                                         |
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.began = time.time()
        self.entries: list[Entry] = []
        self._lock = threading.Lock()
        self._out = file.open("w", encoding="utf-8")

    def add(self, what: str, **fields: Any) -> None:
        """Write an entry down."""
        entry = {"at": time.time(), "what": what, **fields}
        with self._lock:
            self.entries.append(entry)
            self._out.write(json.dumps(entry, default=str) + "\n")

    def of(self, *what: str) -> list[Entry]:
        """Return the entries of these kinds, in order."""
        with self._lock:
            return [entry for entry in self.entries if entry["what"] in what]

    def count(self, what: str) -> int:
        """Return how many entries of a kind there are."""
        return len(self.of(what))

    def complete(self, renders: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]) -> None:
        """Add what renderers and database know, and write everything again in order of time."""
        with self._lock:
            self.entries += [{"at": line["time"], "what": "render", **line} for line in renders]
            self.entries += [{"what": "event", **event} for event in events]
            self.entries.sort(key=lambda entry: entry["at"])
            self._out.close()
            with self.file.open("w", encoding="utf-8") as out:
                out.writelines(json.dumps(entry, default=str) + "\n" for entry in self.entries)

    def close(self) -> None:
        """Close the file."""
        self._out.close()
