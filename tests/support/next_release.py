"""The next release: this tree, copied, with what a release may change in tables, messages, Redis and code.

Nobody knows the next release; but it can change these things only: a migration that this one does not know
(columns in tables that the relay reads, a table), other functions, a field more in the messages or a raised
version of them, another lanes.lua with a field more in Redis. Its processes say that they are of it.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("portal", "ops", "relay", "actors", "broker", "db", "runtime")
#: In the log of each of its processes.
TOLD = "this is the next release"
MIGRATION = "9000_next.sql"
#: A field of Redis' token that its relay writes; this release's knows nothing of it.
FIELD = "next_release"

TABLES = """
ALTER TABLE jobs ADD COLUMN shade text NOT NULL DEFAULT 'plain';
ALTER TABLE outbox ADD COLUMN shade text NOT NULL DEFAULT 'plain';
ALTER TABLE control ADD COLUMN tier int;
CREATE TABLE shades (name text PRIMARY KEY);
"""
VERSION = '"version":1'


def build(folder: Path, *, message_version: int = 1) -> Path:
    """Write the next release's tree into `folder`, which must not exist, and return it.

    Its messages carry a field more, and `message_version`; its workers know that version, too.
    """
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "db" / "migrations" / MIGRATION).write_text(TABLES, encoding="utf-8")
    change(folder / "db/functions/10_intent.sql", VERSION, f'"version":{message_version},"shade":"plain"')
    change(
        folder / "broker/lane_broker.py",
        "supported_version: int = 1",
        f"supported_version: int = {message_version}",
    )
    change(folder / "broker/lanes.lua", "{ 'seq', following }", f"{{ '{FIELD}', 1, 'seq', following }}")
    with (folder / "runtime" / "__init__.py").open("a", encoding="utf-8") as module:
        module.write(f'\nimport sys\n\nsys.stderr.write("{TOLD}\\n")\n')
    return folder


def change(file: Path, old: str, new: str) -> None:
    """Replace `old`, which stands there once: a tree without it is another than this was written for."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    file.write_text(text.replace(old, new), encoding="utf-8")
