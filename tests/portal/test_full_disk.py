"""No room: a document that does not fit is 507, a database that cannot write is 503; nothing half is left."""

import resource
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from ops.guardian import Guardian
from runtime.blobs import BlobStore
from support.full_disk import Disk, MakeDisk, disk, wanted
from support.kinds import kinds, local_kinds
from support.postgres import Database, build_server, new_database, prepare
from support.processes import Processes
from support.team import Client, token_for
from support.valkey import Valkey
from support.waiting import eventually

__all__ = ["disk"]

ONE_SERVER = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
A_DISK = pytest.mark.skipif(not wanted(), reason="told in the session's header")
#: An upload of a megabyte and a refusal; two busy cores.
BOUND_SECONDS = 5.0


def no_room(answer: httpx.Response) -> None:
    """Check that this is the refusal for a full store, in time."""
    assert (answer.status_code, answer.json()["type"]) == (507, "/problems/storage-full")
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    assert "No space" not in answer.text
    assert answer.elapsed.total_seconds() < BOUND_SECONDS


def nothing_left(client: Client, blobs: Path) -> None:
    """Check that the team has no document and that no writer left a file."""
    assert list((blobs / "incoming").iterdir()) == []
    found = client.database.admin.execute("SELECT count(*) FROM documents WHERE team = %s", [client.team])
    assert found.fetchone() == (0,)


@ONE_SERVER
def test_a_file_that_may_not_grow_is_507(database: Database, processes: Processes) -> None:
    """The limit of a process's files, as a quota would have it: also without the right to mount."""
    portal = processes.portal()
    client = Client(database, portal.url, "blue", token_for(database, "blue")[0])
    _, hard = resource.prlimit(portal.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(portal.pid, resource.RLIMIT_FSIZE, (500_000, hard))
    no_room(client.http.put("/v1/documents", content=b"x" * 1_000_000))
    nothing_left(client, processes.blobs)
    resource.prlimit(portal.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert client.http.put("/v1/documents", content=b"x" * 1_000_000).status_code == 201


@A_DISK
@ONE_SERVER
def test_a_full_store_is_507_until_there_is_room(
    database: Database, processes: Processes, disk: MakeDisk
) -> None:
    small = disk(processes.blobs, 2_000_000)
    portal = processes.portal()
    client = Client(database, portal.url, "blue", token_for(database, "blue")[0])
    no_room(client.http.put("/v1/documents", content=b"x" * 3_000_000))
    nothing_left(client, processes.blobs)
    small.fill()
    for content in (b"x", b"x" * 100_000):
        no_room(client.http.put("/v1/documents", content=content))
        nothing_left(client, processes.blobs)
    assert client.http.get("/v1/jobs").status_code == 200
    assert portal.get("/readyz") == 200
    small.free()
    digest = client.put(b"x")
    assert BlobStore(processes.blobs).read(digest) == b"x"
    assert client.post({"document": digest, "kind": "page"}).status_code == 202


@A_DISK
@ONE_SERVER
def test_uploads_that_do_not_all_fit_are_each_stored_or_refused(
    database: Database, processes: Processes, disk: MakeDisk
) -> None:
    """Eight of 600 kB race for 2 MB: who is told 201 is stored, and the others take no room."""
    disk(processes.blobs, 2_000_000)
    client = Client(database, processes.portal().url, "blue", token_for(database, "blue")[0])
    answers: list[httpx.Response] = []

    def upload(n: int) -> None:
        answers.append(client.http.put("/v1/documents", content=bytes([n]) * 600_000))

    threads = [threading.Thread(target=upload, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = BlobStore(processes.blobs)
    told = Counter(answer.status_code for answer in answers)
    assert set(told) <= {201, 507}
    assert told[507] >= 5
    for answer in answers:
        assert answer.status_code == 507 or store.verify(answer.json()["document"])
    assert list(store.incoming.iterdir()) == []
    stored = database.admin.execute("SELECT count(*) FROM documents").fetchone()
    assert stored == (told[201],)


@A_DISK
@ONE_SERVER
def test_a_store_that_became_read_only_is_503_and_shows_what_it_has(
    database: Database, processes: Processes, disk: MakeDisk
) -> None:
    room = disk(processes.blobs, 2_000_000)
    client = Client(database, processes.portal().url, "blue", token_for(database, "blue")[0])
    stored = client.put(b"before")
    room.forbid_writing()
    answer = client.http.put("/v1/documents", content=b"x" * 1_000_000)
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/storage-unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert "Read-only" not in answer.text
    assert client.post({"document": stored, "kind": "page"}).status_code == 202
    room.allow_writing()
    nothing = list((processes.blobs / "incoming").iterdir())
    assert nothing == []
    assert client.http.put("/v1/documents", content=b"x" * 1_000_000).status_code == 201


def full(client: Client, room: Disk, body: dict[str, str]) -> list[tuple[str, int, float]]:
    """Fill the disk and ask for batches until one is refused; return each key, status and its seconds."""
    room.fill()
    found: list[tuple[str, int, float]] = []
    while not found or found[-1][1] == 202:
        key = f"k{len(found)}"
        started = time.monotonic()
        answer = client.post({"jobs": [body] * 500}, path="/v1/batches", key=key)
        found.append((key, answer.status_code, time.monotonic() - started))
        assert "space" not in answer.text
    return found


def taken(client: Client, body: dict[str, str], key: str) -> bool:
    """Ask for the key's batch; tell whether it is there."""
    return client.post({"jobs": [body] * 500}, path="/v1/batches", key=key).status_code == 202


@A_DISK
def test_a_full_data_volume_is_503_and_jobs_are_taken_again_when_there_is_room(
    tmp_path: Path, servers_folder: Path, guardian: Guardian, valkey: Valkey, disk: MakeDisk
) -> None:
    """PostgreSQL refuses, or even ends: no 202 without rows, and its return is noticed by itself."""
    room = disk(servers_folder / "small", 260_000_000)
    server = build_server(local_kinds()[-1], room.folder, guardian, {"min_wal_size": "32MB"})
    server.start()
    with ExitStack() as ends:
        ends.callback(server.kill)
        prepare(server)
        database = ends.enter_context(new_database(server))
        processes = Processes(tmp_path, guardian, database, valkey)
        ends.callback(processes.close)
        portal = processes.portal()
        client = Client(database, portal.url, "blue", token_for(database, "blue")[0])
        body = {"document": client.put(), "kind": "page"}
        found = full(client, room, body)
        assert found[-1][1] == 503
        assert max(seconds for _, _, seconds in found) < 20
        room.free()
        server.start()
        for key, _, _ in found:
            eventually(partial(taken, client, body, key), timeout=10)
        with server.connect(database.name) as admin:
            assert admin.execute("SELECT count(*) FROM jobs").fetchone() == (500 * len(found),)
        assert portal.running
