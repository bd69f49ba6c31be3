"""How each process reaches PostgreSQL and Redis: servers of the user's own, or those of the stack.

`ONCOMMIT_DATABASE_URL` and `ONCOMMIT_REDIS_URL` in the launcher's environment name the user's own.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from db.cluster import create_database, join_roles, set_role_password
from db.migrate import migrate
from ops.home import Home
from ops.ports import LOOPBACK
from ops.postgres import SUPERUSER, PostgresServer
from runtime.settings import settings

DATABASE = "oncommit"
Part = Literal["portal", "relay", "worker", "operator", "viewer"]
PARTS: tuple[Part, ...] = ("portal", "relay", "worker", "operator", "viewer")


@dataclass(frozen=True, slots=True)
class Reach:
    """Connection strings.

    Attributes:
        owner: may migrate.
        parts: one for each role.
        replication: for the relay's stream, when its own will not do.

    """

    owner: str
    parts: Mapping[Part, str]
    replication: str | None = None


def own(name: str) -> str | None:
    """Return the user's own value of `ONCOMMIT_<name>` or of `ONCOMMIT_<name>_FILE`, None when not given."""
    value = os.environ.get(f"ONCOMMIT_{name}")
    return value or None


def of_own_database(url: str) -> Reach:
    """Migrate the user's database; each process then connects as the user and acts as its own role.

    Raises:
        MigrationError, psycopg.Error: see `db.migrate`.
        DatabaseError: the user may not act as the roles.

    """
    migrate(url, settings().publication)
    join_roles(url)
    given = conninfo_to_dict(url)

    def acting_as(role: str) -> str:
        if given.get("user") == role:
            return url
        options = f"{given.get('options') or ''} -c role={role}".strip()
        return make_conninfo(url, options=options)

    # SET ROLE lends rights on tables, not the REPLICATION attribute: the stream connects as the user.
    return Reach(url, {part: acting_as(f"oncommit_{part}") for part in PARTS}, own("REPLICATION_URL") or url)


def of_embedded_database(server: PostgresServer, home: Home) -> Reach:
    """Make and migrate the stack's database, and give each role its password.

    Raises:
        MigrationError, DatabaseError, psycopg.Error: see `db.migrate`, `db.errors`.

    """
    create_database(server.dsn(), DATABASE)
    migrate(server.dsn(DATABASE), settings().publication)

    def url(user: str, password: str) -> str:
        return f"postgresql://{user}:{quote(password)}@{LOOPBACK}:{server.port}/{DATABASE}"

    parts: dict[Part, str] = {}
    for part in PARTS:
        role = f"oncommit_{part}"
        password = home.secret(role)
        set_role_password(server.dsn(), role, password)
        parts[part] = url(role, password)
    return Reach(url(SUPERUSER, server.plan.password), parts)
