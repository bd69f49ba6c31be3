"""Blobs appear whole or not at all, are named by their bytes, and a full disk is said clearly."""

import errno
import hashlib
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.blobs import BlobMissing, BlobStore, BlobStoreFull, BlobStoreUnavailable

CONTENT = b"some bytes"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def test_what_is_put_is_read_back_under_its_digest(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    assert store.put_bytes(CONTENT) == DIGEST
    assert store.put_bytes(CONTENT) == DIGEST
    assert store.read(DIGEST) == CONTENT
    assert store.exists(DIGEST)
    assert store.size(DIGEST) == len(CONTENT)
    assert store.verify(DIGEST)
    assert list(store.incoming.iterdir()) == []


def test_what_is_not_committed_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with store.writer() as writer:
        writer.write(CONTENT)
    assert not store.exists(DIGEST)
    assert list(store.incoming.iterdir()) == []
    with pytest.raises(BlobMissing):
        store.read(DIGEST)
    assert store.size(DIGEST) is None
    assert not store.verify(DIGEST)


@pytest.mark.parametrize("damaged", [b"cut", b"", b"x" * len(CONTENT)])
def test_a_damaged_blob_is_found_and_mended(tmp_path: Path, damaged: bytes) -> None:
    store = BlobStore(tmp_path)
    store.put_bytes(CONTENT)
    store.path(DIGEST).write_bytes(damaged)
    assert not store.verify(DIGEST)
    assert store.put_bytes(CONTENT) == DIGEST
    assert store.read(DIGEST) == CONTENT


def test_a_good_blob_is_not_written_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put_bytes(CONTENT)
    before = store.path(DIGEST).stat()
    store.put_bytes(CONTENT)
    after = store.path(DIGEST).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    "digest", ["", "sha256:", "sha256:" + "A" * 64, "sha256:../../etc/passwd", DIGEST + "\n"]
)
def test_a_name_that_is_no_digest_leads_nowhere(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        BlobStore(tmp_path).path(digest)


def test_portal_and_worker_of_one_group_can_share(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        store = BlobStore(tmp_path / "blobs")
        store.put_bytes(CONTENT)
    finally:
        os.umask(before)
    path = store.path(DIGEST)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2770
    assert stat.S_IMODE(store.incoming.stat().st_mode) == 0o2770


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BlobStoreFull):
        store.put_bytes(CONTENT)
    with pytest.raises(BlobStoreFull):
        store.try_out()
    assert not store.exists(DIGEST)
    assert list(store.incoming.iterdir()) == []


def test_a_store_is_tried_out_without_a_trace(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.try_out()
    assert list(store.incoming.iterdir()) == []
    store.incoming.rmdir()
    store.incoming.touch()
    with pytest.raises(BlobStoreUnavailable):
        store.try_out()


def test_many_writers_of_one_content_agree(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    content = os.urandom(1 << 20)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(store.put_bytes(content))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert store.verify(found[0])


def test_what_killed_writers_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    old, new = store.incoming / "old", store.incoming / "new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    assert store.sweep() == 1
    assert [p.name for p in store.incoming.iterdir()] == ["new"]
