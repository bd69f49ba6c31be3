"""Which account the servers run as, and what that account can reach.

PostgreSQL refuses to run as root, so a root launcher drops to an unprivileged account. That account may
not be able to enter the project (a home folder of mode 700) nor the installed servers: this module finds
out by trying, since modes, groups and access lists all have a say.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

# In this order: every Unix has nobody; some containers keep only daemon.
CANDIDATES = ("nobody", "daemon")


class PopenAccount(TypedDict, total=False):
    """Keyword arguments of `subprocess.Popen` that change the account."""

    user: int
    group: int
    extra_groups: list[int]


class NoAccountError(RuntimeError):
    """There is no unprivileged account to run the servers as; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account by number. `other` tells whether it is another than this process's own."""

    uid: int
    gid: int
    other: bool

    def popen(self) -> PopenAccount:
        """Return what `subprocess.Popen` needs to start a process as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other else {}

    def own(self, folder: Path) -> None:
        """Make `folder` if need be, and give it to this account, for its eyes only."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.give(folder)

    def give(self, path: Path) -> None:
        """Make this account the owner of `path`."""
        if self.other:
            os.chown(path, self.uid, self.gid)

    def can(self, letter: str, path: Path) -> bool:
        """Tell whether this account can r(ead), w(rite) or (e)x(ecute or enter) `path`."""
        if not self.other:
            return os.access(path, {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}[letter])
        asked = subprocess.run(  # noqa: S603 -- a constant command
            ["/bin/sh", "-c", f'test -{letter} "$1"', "sh", os.fspath(path)],
            check=False, cwd="/", stdin=subprocess.DEVNULL, **self.popen(),
        )  # fmt: skip
        return asked.returncode == 0


def servers_account() -> Account:
    """Return the account for PostgreSQL and Valkey: this process's own, or an unprivileged one when root.

    Raises:
        NoAccountError: this is root and the machine knows none of the candidates, or a uid without a name.

    """
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            raise NoAccountError(
                f"PostgreSQL needs a name for uid {os.geteuid()}: add one to /etc/passwd, or be another user"
            ) from None
        return Account(os.geteuid(), os.getegid(), other=False)
    for name in CANDIDATES:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_uid, found.pw_gid, other=True)
    raise NoAccountError(
        f"PostgreSQL does not run as root, and there is no account {' or '.join(CANDIDATES)} to drop to: "
        "run this as another user"
    )
