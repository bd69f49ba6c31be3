"""The doctor's checks of PostgreSQL: settings, roles, migrations, clock, and whether work moves."""

import time
from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from db import catalog, oversight
from db.catalog import Server
from db.cluster import ROLES
from db.control import EVERYTHING
from db.migrate import NEWEST, OLDEST, MigrationError, pending
from ops import show
from ops.diagnosis import MIGRATE, Finding, fail, ok, skip, warn

#: Times in logs of two machines can be compared if they differ by less; nothing else depends on it.
CLOCK_SECONDS = 1.0
#: Longer than any wait that is planned: something does not move.
OLD_SECONDS = 60.0
#: A worker beats every second or so and is lost after 15 s by default.
SILENT_SECONDS = 30.0


def server_checks(server: Server) -> Iterator[Finding]:
    """Judge the server's version and settings."""
    if OLDEST <= server.major <= NEWEST:
        yield ok("PostgreSQL", f"{server.version}, as {server.role}")
    else:
        yield fail("PostgreSQL", server.version, f"versions {OLDEST} to {NEWEST} are supported")
    if server.standby:
        yield fail("primary", "this server is a standby", "point ONCOMMIT_DATABASE_URL at the primary")
    if server.encoding != "UTF8":
        yield fail(
            "encoding", server.encoding, "make the database anew: createdb --encoding=UTF8 -T template0"
        )
    if server.wal_level == "logical":
        yield ok("wal_level", "logical")
    else:
        yield fail(
            "wal_level",
            server.wal_level,
            "set wal_level = logical and restart; until then intents are polled",
        )
    if server.slot_keep_mb < 0:
        yield warn(
            "max_slot_wal_keep_size",
            "no limit: a slot that nobody reads fills the disk",
            "set it well below the free disk space, such as 10GB: a lost slot costs a resync, never a job",
        )
    else:
        yield ok("max_slot_wal_keep_size", f"{server.slot_keep_mb} MB")
    if server.slots_used >= server.slots_most:
        yield warn(
            "max_replication_slots",
            f"all {server.slots_most} are taken",
            "raise it, or drop slots nobody reads",
        )
    if server.senders_most == 0:
        yield fail("max_wal_senders", "0", "set max_wal_senders to 5 or more and restart")
    if not server.fsync:
        yield warn(
            "fsync", "off: a power cut may take accepted jobs with it", "set fsync = on, except for tests"
        )


def role_checks(conn: Connection[Any], replication_url: bool) -> Iterator[Finding]:
    """Judge the roles; `replication_url`: the stream has a role of its own."""
    found = catalog.roles(conn, ROLES)
    if missing := [role for role in ROLES if role not in found]:
        yield fail("roles", f"missing: {', '.join(missing)}", MIGRATE)
        return
    if locked := [role for role, (login, _) in found.items() if not login]:
        yield warn("roles", f"may not log in: {', '.join(locked)}", "ALTER ROLE ... LOGIN PASSWORD ...")
    else:
        yield ok("roles", f"{len(found)} exist and may log in")
    if found["oncommit_relay"][1]:
        yield ok("REPLICATION", "oncommit_relay has it")
    elif replication_url:
        yield ok("REPLICATION", "oncommit_relay lacks it; ONCOMMIT_REPLICATION_URL is set")
    else:
        yield fail(
            "REPLICATION",
            "oncommit_relay lacks it: intents are polled",
            "as a superuser ALTER ROLE oncommit_relay REPLICATION, or set ONCOMMIT_REPLICATION_URL for it",
        )


def migration_checks(conn: Connection[Any]) -> Iterator[Finding]:
    """Judge whether the database is at this version."""
    try:
        names = pending(oversight.ledger(conn))
    except MigrationError as error:
        yield fail("migrations", str(error), "use the version of oncommit that this database was migrated by")
        return
    if names:
        yield fail("migrations", f"not applied: {', '.join(names)}", MIGRATE)
    else:
        yield ok("migrations", "current")


def clock_checks(conn: Connection[Any]) -> Iterator[Finding]:
    """Compare PostgreSQL's clock with this machine's."""
    before = time.time()
    theirs = catalog.now(conn)
    after = time.time()
    yield compare_clocks("clock of PostgreSQL", theirs - (before + after) / 2, after - before)


def compare_clocks(check: str, difference: float, round_trip: float) -> Finding:
    """Judge a difference in seconds that is known to half a round trip."""
    detail = f"{difference:+.3f} s to this machine's"
    if abs(difference) > CLOCK_SECONDS + round_trip / 2:
        advice = "run an NTP client on both; dispatch goes by PostgreSQL's clock alone, but logs disagree"
        return warn(check, detail, advice)
    return ok(check, detail)


def work_checks(conn: Connection[Any]) -> Iterator[Finding]:
    """Judge whether work moves: pauses, workers, and the age of the oldest intent that could run."""
    everything = oversight.lanes(conn, EVERYTHING)
    paused = bool(everything and everything[0]["paused"])
    if paused:
        row = everything[0]
        yield warn(
            "dispatch",
            show.printable(
                f"paused by {row['paused_by']} since {show.cell(row['paused_at'])}: {row['paused_reason']}"
            ),
            "oncommit dispatch resume",
        )
    beating = [w for w in oversight.workers(conn) if w["silent_seconds"] < SILENT_SECONDS]
    if beating:
        yield ok("workers", f"{len(beating)} processes beat, {sum(w['threads'] for w in beating)} threads")
    else:
        yield warn("workers", "none beats", "start some: dramatiq actors:setup")
    oldest = oversight.oldest_due(conn)
    age, intents = oldest["oldest_due_seconds"], oldest["due_intents"]
    if age > OLD_SECONDS and paused:
        yield skip("oldest due", f"{show.span(age)}: dispatch is paused")
    elif age > OLD_SECONDS:
        yield warn(
            "oldest due",
            f"{show.span(age)}, {intents} intents due",
            "see `oncommit dispatch status`: paused or capped teams, too few workers, or no relay",
        )
    else:
        yield ok("oldest due", f"{show.span(age)}, {intents} intents due")
