"""Artifacts are compared with the store, and made again when the very same bytes come out."""

import hashlib
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from actors.mock_renderer import render
from runtime.blobs import BlobStore
from support.desk import CLAIM, FINISH, Desk

DOCUMENT = b"a document\nof two lines\n"


@pytest.fixture
def store(desk: Desk) -> BlobStore:
    return BlobStore(Path(desk.env["ONCOMMIT_BLOBS"]))


def succeeded(desk: Desk, store: BlobStore, preview: bytes | None = None) -> tuple[UUID, str]:
    """Return a succeeded job and its artifact's digest."""
    document = store.put_bytes(DOCUMENT)
    preview = preview or render(store.path(document), digest=document, kind="page")
    artifact, worker = store.put_bytes(preview), uuid4()
    (job,) = desk.accept(document=document)
    assert desk.admin.execute(CLAIM, [worker, job]).fetchone() == ("taken",)
    desk.admin.execute(FINISH, [worker, job, artifact, len(preview)])
    return job, artifact


def damage(store: BlobStore, digest: str) -> None:
    """Change a byte and not the size, as a failing disk does."""
    path = store.path(digest)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_whole_artifacts_are_counted_and_nothing_is_wrong(desk: Desk, store: BlobStore) -> None:
    succeeded(desk, store)
    succeeded(desk, store)
    assert desk.json("artifacts", "verify") == {"counts": {"ok": 2}, "wrong": []}
    assert {row["action"] for row in desk.json("actions", "list")} == {"verify_artifacts"}


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_what_is_missing_or_damaged_is_found_and_made_again(desk: Desk, store: BlobStore, state: str) -> None:
    job, artifact = succeeded(desk, store)
    if state == "missing":
        store.path(artifact).unlink()
    else:
        damage(store, artifact)
    before = desk.json("jobs", "show", str(job))
    done = desk.run("artifacts", "verify")
    assert done.returncode == 1
    assert f"{job}\tpage\t{state}" in done.stdout
    assert desk.json("artifacts", "verify", "--repair")["counts"] == {"repaired": 1}
    assert f"sha256:{hashlib.sha256(store.read(artifact)).hexdigest()}" == artifact
    assert desk.json("artifacts", "verify")["counts"] == {"ok": 1}
    assert desk.json("jobs", "show", str(job)) == before


def test_what_cannot_be_made_again_is_said_and_nothing_else_is_stored(desk: Desk, store: BlobStore) -> None:
    _, artifact = succeeded(desk, store, b"made by another version of the renderer")
    store.path(artifact).unlink()
    done = desk.run("artifacts", "verify", "--repair")
    assert done.returncode == 1
    assert "differs" in done.stdout
    assert not store.exists(artifact)
    damage(store, f"sha256:{hashlib.sha256(DOCUMENT).hexdigest()}")
    assert "document_missing" in desk.run("artifacts", "verify", "--repair").stdout


def test_no_store_here_is_one_line_and_makes_none(desk: Desk) -> None:
    done = desk.run("artifacts", "verify")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "ONCOMMIT_BLOBS" in done.stderr
    assert not Path(desk.env["ONCOMMIT_BLOBS"]).exists()
