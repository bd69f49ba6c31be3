"""Blobs: documents and previews in a folder that portal and workers share, named by their content.

A blob appears whole or not at all: it is written beside the others, synced to disk, and renamed to
its digest. So two writers of one content cannot disturb each other, and a name never lies unless the
disk does, which `verify` finds.

Files are readable by the folder's group and folders are writable by it (set-group-id), so that portal
and workers may run as different users of one group.
"""

import errno
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, Self

#: As the schema checks it: the only form in which a digest is written anywhere.
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
FILE_MODE = 0o640
FOLDER_MODE = 0o2770
CHUNK = 1 << 20  # bytes read at a time, so that memory does not depend on the blob's size
#: No writer is that slow: the portal's deadline for a body is far below.
STALE_SECONDS = 24 * 3600.0


class BlobStoreFull(OSError):
    """The disk or the quota of the store is used up: nothing was stored, try again when there is room."""


class BlobStoreUnavailable(OSError):
    """The store does not work: its file system is read-only, broken, or not to be entered."""


class BlobMissing(LookupError):
    """No blob of this digest is in the store."""


def _full(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class BlobWriter:
    """One blob being written. Leave the block without `commit()` and nothing is kept."""

    def __init__(self, store: "BlobStore") -> None:
        self._store = store
        self._hash = hashlib.sha256()
        self.size = 0
        try:
            handle, name = tempfile.mkstemp(dir=store.incoming)
        except OSError as error:
            raise _translated(error) from error
        self._temporary: Path | None = Path(name)
        self._file: BinaryIO = os.fdopen(handle, "wb", buffering=0)

    def write(self, chunk: bytes) -> None:
        """Append `chunk`.

        Raises:
            BlobStoreFull: there is no room.
            BlobStoreUnavailable: the store does not work.

        """
        view = memoryview(chunk)
        try:
            while view:  # a raw write may take less than all of it, as when the disk fills up
                view = view[self._file.write(view) :]
        except OSError as error:
            raise _translated(error) from error
        self._hash.update(chunk)
        self.size += len(chunk)

    @property
    def digest(self) -> str:
        """Of what was written so far, `sha256:<hex>`."""
        return f"sha256:{self._hash.hexdigest()}"

    def commit(self) -> str:
        """Make the blob durable and visible; return its digest.

        Raises:
            BlobStoreFull: there is no room.
            BlobStoreUnavailable: the store does not work.

        """
        if self._temporary is None:
            raise ValueError("this writer has ended")
        target = self._store.path(self.digest)
        try:
            os.fchmod(self._file.fileno(), FILE_MODE)
            os.fsync(self._file.fileno())
            self._store.make_folder(target.parent)
            self._temporary.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise _translated(error) from error
        self._temporary = None
        return self.digest

    def close(self) -> None:
        """Forget what is not committed."""
        self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlobStore:
    """The store in the folder `root`, made if it is not there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"
        self.make_folder(root)
        self.make_folder(self.incoming)

    @staticmethod
    def make_folder(folder: Path) -> None:
        """Make `folder` with the store's mode, durably, unless it is there."""
        try:
            folder.mkdir(parents=True)
            folder.chmod(FOLDER_MODE)  # mkdir's own mode is cut by the umask
            _sync_folder(folder.parent)
        except FileExistsError:
            pass

    def path(self, digest: str) -> Path:
        """Return where the blob is, or would be.

        Raises:
            ValueError: this is no digest.

        """
        if DIGEST.fullmatch(digest) is None:
            raise ValueError("a digest is sha256: and 64 hexadecimal digits")
        name = digest.removeprefix("sha256:")
        return self.root / name[:2] / name

    def writer(self) -> BlobWriter:
        """Begin a blob; use it as a context manager."""
        return BlobWriter(self)

    def put_bytes(self, content: bytes) -> str:
        """Store `content` and return its digest; a good blob that is there already is left as it is.

        Raises:
            BlobStoreFull: there is no room.
            BlobStoreUnavailable: the store does not work.

        """
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if self.size(digest) == len(content) and self.verify(digest):
            return digest
        with self.writer() as writer:
            writer.write(content)
            return writer.commit()

    def try_out(self) -> None:
        """Write CHUNK bytes to the store's disk, under no name, and let go of them.

        Raises:
            BlobStoreFull: there is no room.
            BlobStoreUnavailable: the store does not work.

        """
        try:
            with tempfile.TemporaryFile(dir=self.incoming) as file:
                file.write(bytes(CHUNK))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _translated(error) from error

    def exists(self, digest: str) -> bool:
        """Tell whether the blob is there."""
        return self.path(digest).is_file()

    def size(self, digest: str) -> int | None:
        """Return the blob's size in bytes, None when it is not there."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def open(self, digest: str) -> BinaryIO:
        """Open the blob for reading.

        Raises:
            BlobMissing: it is not there.

        """
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as error:
            raise BlobMissing(digest) from error

    def read(self, digest: str) -> bytes:
        """Return the whole blob; raises as `open` does."""
        with self.open(digest) as file:
            return file.read()

    def verify(self, digest: str) -> bool:
        """Tell whether the blob is there and its content is what its name says."""
        seen = hashlib.sha256()
        try:
            with self.open(digest) as file:
                while chunk := file.read(CHUNK):
                    seen.update(chunk)
        except BlobMissing:
            return False
        return f"sha256:{seen.hexdigest()}" == digest

    def sweep(self, older_than_seconds: float = STALE_SECONDS) -> int:
        """Remove what writers that were killed left behind; return how many files."""
        limit = time.time() - older_than_seconds
        swept = 0
        for left in self.incoming.iterdir():
            try:
                if left.stat().st_mtime < limit:
                    left.unlink()
                    swept += 1
            except FileNotFoundError:
                continue  # another process sweeps too, or its writer committed
        return swept


def _translated(error: OSError) -> OSError:
    if _full(error):
        return BlobStoreFull(error.errno, "the blob store is full")
    return BlobStoreUnavailable(error.errno, f"the blob store does not work: {error.strerror}")


def _sync_folder(folder: Path) -> None:
    """Make names in a folder durable: without this a power cut may bring back the time before them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
