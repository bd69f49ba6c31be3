"""The stack's folder: `.oncommit/` in the project, kept between runs, removed by `make clean`.

.oncommit/lock        held while a stack runs here
.oncommit/elsewhere   where the servers' data lies, when their account cannot enter this folder
.oncommit/secrets/    passwords, one file each, mode 0600
.oncommit/blobs/      documents and previews
.oncommit/logs/       one file for each process
<servers>/postgres-18/, <servers>/valkey/, <servers>/binaries/
"""

import fcntl
import os
import secrets
import tempfile
import time
from pathlib import Path

from ops import proctable
from ops.account import Account

# The guardian of a stack that was killed needs a moment to end it: wait so long for the lock.
LOCK_SECONDS = 30.0
ELSEWHERE = "oncommit-"  # `make clean` removes only a recorded folder of this name


class HomeError(RuntimeError):
    """The folder cannot be used; the message says why and what to do."""


class Home:
    """One stack's folder.

    Attributes:
        path: the folder itself, the launcher's own.
        servers: where the servers' data lies; their account can enter it.

    """

    def __init__(self, path: Path, account: Account) -> None:
        self.path = path.absolute()
        self.account = account
        self._lock: int | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeError(f"cannot make {self.path}: {error.strerror}") from error
        self.servers = self._servers()
        self.blobs = self._folder("blobs")
        self.logs = self._folder("logs")

    def _folder(self, name: str, mode: int = 0o755) -> Path:
        folder = self.path / name
        folder.mkdir(mode=mode, exist_ok=True)
        return folder

    def _servers(self) -> Path:
        record = self.path / "elsewhere"
        if self.account.can("x", self.path):
            return self.path
        if record.exists():
            kept = Path(record.read_text(encoding="utf-8").strip())
            # Somebody else's folder of that name, after /tmp was cleaned, is not taken for ours.
            if kept.is_dir() and not kept.is_symlink() and kept.stat().st_uid == os.geteuid():
                return kept
        folder = Path(tempfile.mkdtemp(prefix=ELSEWHERE))
        folder.chmod(0o711)  # others may pass through, not look around
        record.write_text(f"{folder}\n", encoding="utf-8")
        return folder

    def explanation(self) -> str | None:
        """Return why the data lies elsewhere, for humans; None when it lies here."""
        if self.servers == self.path:
            return None
        return (
            f"The servers run as uid {self.account.uid}, which cannot enter {self.path}: "
            f"their data is in {self.servers} (recorded in {self.path / 'elsewhere'})."
        )

    def secret(self, name: str) -> str:
        """Return the secret of that name, made at the first call: 43 URL-safe characters."""
        file = self._folder("secrets", mode=0o700) / name
        if file.exists():
            return file.read_text(encoding="ascii").strip()
        value = secrets.token_urlsafe(32)
        self.keep_secret(name, value)
        return value

    def keep_secret(self, name: str, value: str) -> None:
        """Replace the secret of that name, whole or not at all, readable by its owner only."""
        file = self._folder("secrets", mode=0o700) / name
        draft = file.with_suffix(".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(f"{value}\n")
            out.flush()
            os.fsync(out.fileno())
        draft.rename(file)

    def lock(self) -> int:
        """Keep every other stack out of this folder; return the descriptor that holds the lock.

        Raises:
            HomeError: another stack runs here.

        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                # A living launcher will not go away by itself; a dead one's guardian soon will.
                if (
                    holder.isdigit() and proctable.find(int(holder)) is not None
                ) or time.monotonic() > deadline:
                    os.close(descriptor)
                    raise HomeError(
                        f"a stack already runs in {self.path} (pid {holder}): stop it, or use another folder"
                    ) from error
                time.sleep(0.1)
            else:
                break
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor
        return descriptor

    def unlock(self) -> None:
        """Let the next stack in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
