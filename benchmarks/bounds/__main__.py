"""`python -m benchmarks.bounds`: measure, print what came beside the bounds; exit 1 when one is missed.

A measure that fails is told and counted, and the others go on. Each run has a database and a Valkey of its
own; they share a PostgreSQL.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.bounds import report
from benchmarks.bounds.bounds import BOUNDS
from benchmarks.bounds.measures import MEASURES
from benchmarks.bounds.stage import Stage
from ops.guardian import Guardian
from support.postgres import Server
from tests.chaos.building import logs, server_of_its_own, world_on

TIMES = 3
LOG_TAIL = 2_000  # characters of each process' log, when its run failed


def main() -> int:
    """Measure what is asked for; return 0 when every bound holds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the small disk is unmounted
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="may be given several times")
    parser.add_argument("--repeat", type=int, default=TIMES, help=f"runs of each, default {TIMES}")
    parser.add_argument("--write", action="store_true", help="put the table into docs/bounds.md")
    given = parser.parse_args()
    names = given.only or list(MEASURES)
    if given.write and set(names) != set(BOUNDS):
        parser.error("--write needs all measures")
    return int(not _measure_all(names, given.repeat, write=given.write))


def _measure_all(names: list[str], times: int, *, write: bool) -> bool:
    """Measure each so often; write the table after each measure: who stops it keeps the rest."""
    of, found = report.commit(), report.Found(times)
    began, load = time.monotonic(), [os.getloadavg()[0]]

    def say(what: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {what}", file=sys.stderr, flush=True)

    with server_of_its_own() as (server, guardian):
        valkey, text, postgres = "", "", f"PostgreSQL {_version(server)} ({server.decoder})"
        for done, name in enumerate(names, 1):
            for n in range(times):
                say(f"{name}, {n + 1} of {times}")
                try:
                    valkey = _measure(name, server, guardian, found)
                except Exception as error:  # noqa: BLE001 -- told and counted; the others go on
                    traceback.print_exc()
                    found.fail(name, f"run {n + 1}: {type(error).__name__}: {error}")
                else:
                    for bound in BOUNDS[name]:
                        say(f"  {bound.what}: {found.values[name, bound.key][-1]:.3g} {bound.unit}")
                load.append(os.getloadavg()[0])
            minutes = (time.monotonic() - began) / 60
            told = report.conditions(of, postgres, valkey, minutes, load)
            text = report.markdown(found, names[:done], told, left=names[done:])
            if write:
                report.write(text)
    print(text)
    return found.holds(names)


def _measure(name: str, server: Server, guardian: Guardian, found: report.Found) -> str:
    with (
        tempfile.TemporaryDirectory(prefix="oncommit-bounds-") as folder,
        tempfile.TemporaryDirectory(prefix="oncommit-bounds-servers-") as servers_folder,
    ):
        for each in (folder, servers_folder):
            Path(each).chmod(0o711)
        _as_it_was(server)
        with world_on(server, Path(folder), Path(servers_folder), guardian) as world:
            info = world.valkey.client.info("server")
            try:
                found.add(name, MEASURES[name](Stage(world)))
            except BaseException:
                for process, text in logs(world):
                    print(f"--- {process}\n{text[-LOG_TAIL:]}", file=sys.stderr)
                raise
    return f"Valkey {info.get('valkey_version') or info['redis_version']}"


def _as_it_was(server: Server) -> None:
    """Let no measure find what the one before has left: a stopped server, a setting."""
    server.start()
    with server.connect() as conn:
        conn.execute("ALTER SYSTEM RESET ALL")
        conn.execute("SELECT pg_reload_conf()")


def _version(server: Server) -> str:
    with server.connect() as conn:
        row = conn.execute("SELECT split_part(current_setting('server_version'), ' ', 1)").fetchone()
    assert row is not None
    return str(row[0])


if __name__ == "__main__":
    sys.exit(main())
