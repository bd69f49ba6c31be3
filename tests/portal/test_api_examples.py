"""docs/api.md: its examples are run as they stand there, and its numbers are those of the code."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.guardian import Guardian
from portal.asked import MAX_BATCH_BYTES, MAX_JOB_BYTES, MAX_LINES_BYTES
from portal.bodies import BYTES_PER_SECOND, GRACE_SECONDS, JSON_OF_A_TEAM
from portal.event_routes import HEARTBEAT_SECONDS
from portal.idempotency import BUSY_SECONDS
from portal.json_text import MAX_DEPTH
from portal.limits import BATCHES_AT_A_TIME, BURST_SECONDS
from portal.problems import KINDS, MAX_ERRORS
from portal.resources import MAX_BATCH
from portal.streams import MAX_STREAMS
from portal.wellformed import HEADER_BYTES
from runtime.settings import Settings
from support.examples import PROGRAMS, Language, here
from support.kinds import kinds
from support.postgres import Server, new_database
from support.processes import KEPT, Processes
from support.team import House, rows
from support.valkey import LocalValkey

DOC = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
PNG = b"\x89PNG\r\n\x1a\n"
#: File of the example, and the previews that it leaves.
LEAVES: dict[Language, tuple[str, list[str]]] = {
    "sh": ("example.sh", ["page.png"]),
    "python": ("example.py", ["page.png", "thumbnail.png"]),
    "javascript": ("example.mjs", ["page.png"]),
}
# What a client sees is the same on every server.
ONE_SERVER = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)


def example(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{len(found)} examples in {language}"
    return str(found[0])


@pytest.fixture(scope="module")
def stack(
    session_server: Server,
    guardian: Guardian,
    servers_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A portal, a relay and a worker: the whole path."""
    session_server.start()
    valkey = LocalValkey(servers_folder, guardian)
    valkey.start()
    with new_database(session_server) as database:
        processes = Processes(tmp_path_factory.mktemp("examples"), guardian, database, valkey)
        for part in (
            processes.relay(ready=False),
            processes.worker(ready=False),
            portal := processes.portal(),
        ):
            part.wait_ready()
        yield House(database, portal, processes)
        processes.close()
    valkey.close()


@ONE_SERVER
@pytest.mark.parametrize("language", here())
def test_an_example_fetches_its_preview_and_finds_its_job_again(
    stack: House, language: Language, tmp_path: Path
) -> None:
    client = stack.client()
    name, previews = LEAVES[language]
    (tmp_path / name).write_text(example(language), encoding="utf-8")
    (tmp_path / "report.md").write_text(f"# A report in {language}\n", encoding="utf-8")
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    for _ in range(2):
        done = subprocess.run(
            [PROGRAMS[language].runs, name],
            cwd=tmp_path,
            env={**env, "ONCOMMIT_URL": client.url, "ONCOMMIT_TOKEN": client.token},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for preview in previews:
            assert (tmp_path / preview).read_bytes().startswith(PNG)
    assert re.search(r"^event: (succeeded|finished)$", done.stdout, re.MULTILINE), done.stdout
    assert (rows(client)["jobs"], rows(client)["requests"]) == (len(previews), 1)
    client.http.close()


def test_the_example_in_javascript_has_twenty_lines() -> None:
    assert len(example("javascript").splitlines()) == 20


@ONE_SERVER
def test_every_address_and_no_other_is_on_the_page(stack: House) -> None:
    client = stack.client()
    described = {path for path in client.http.get("/openapi.json").json()["paths"] if path.startswith("/v1")}
    # The first table; a query or a name in an example is no address of its own.
    table = DOC.partition("A **202 means committed**")[0]
    assert set(re.findall(r"/v1/[a-z/{}_]+", table)) == described
    client.http.close()


def test_every_refusal_named_is_one_that_there_is() -> None:
    named = {slug for status, slug in re.findall(r"\b(4\d\d|503) `([a-z-]+)`", DOC)}
    named |= set(re.findall(r"409\n`([a-z-]+)`", DOC))
    assert named
    assert named <= KINDS.keys()


@pytest.mark.parametrize(
    "sentence",
    [
        f"document | {Settings.model_fields['max_document_bytes'].default:,} bytes",
        f"body of a job | {MAX_JOB_BYTES:,} bytes",
        f"{MAX_BATCH:,} jobs; {MAX_BATCH_BYTES:,} bytes of JSON or {MAX_LINES_BYTES:,} bytes of NDJSON",
        f"up to {MAX_BATCH:,} at once",
        f"the first {MAX_ERRORS} and how many",
        f"{MAX_DEPTH} levels deep",
        f"request line and headers | {HEADER_BYTES:,} bytes",
        f"{GRACE_SECONDS:g} s, and 1 s more for each {BYTES_PER_SECOND:,} bytes",
        (
            f"{(rate := Settings.model_fields['team_requests_per_second'].default):,.0f} a second, "
            f"{rate * BURST_SECONDS:,.0f} at once"
        ),
        f"per portal process | {JSON_OF_A_TEAM:,} bytes; {BATCHES_AT_A_TIME} batches at the database",
        f"open streams, per portal process | {MAX_STREAMS:,}",
        f"waits up to {BUSY_SECONDS:g} s",
        f"A comment comes every {HEARTBEAT_SECONDS:g} s",
    ],
)
def test_a_number_on_the_page_is_the_code_s(sentence: str) -> None:
    assert sentence in DOC


@ONE_SERVER
def test_the_backlog_quota_on_the_page_is_the_schema_s(stack: House) -> None:
    client = stack.client()
    row = client.database.admin.execute(
        "SELECT max_backlog FROM teams WHERE id = %s", [client.team]
    ).fetchone()
    assert row is not None
    assert f"unfinished jobs of a team | {row[0]:,} " in DOC
    client.http.close()
