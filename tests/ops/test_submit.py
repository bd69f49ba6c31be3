"""`oncommit submit`: what it submits, under which keys, and what becomes of it. As a real command."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from psycopg import sql

from ops.exit_codes import INTERRUPTED, LIMIT_REACHED
from ops.guardian import Guardian
from ops.sample_documents import sample_documents
from ops.submission import TITLE_CHARACTERS, Kind, Order, SubmissionError, papers
from runtime.settings import PREFIX
from support.kinds import kinds
from support.postgres import CREATE_FROM_TEMPLATE, DROP, TEMPLATE, Database, Server
from support.processes import Processes
from support.team import Client, House, rows
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
ORDER = Order("sha256:" + "0" * 64, Kind.page, 5, "a.txt")


def test_an_order_has_the_same_key_in_every_process_and_any_other_has_another() -> None:
    others = [
        replace(ORDER, document="sha256:" + "1" * 64),
        replace(ORDER, kind=Kind.thumbnail),
        replace(ORDER, priority=6),
        replace(ORDER, title="b.txt"),
    ]
    keys = [ORDER.key(""), ORDER.key("again"), *(other.key("") for other in others)]
    assert len(set(keys)) == len(keys)
    # Pinned: a new version of the command resumes what an older one had begun.
    assert ORDER.key("") == "submit-d1514b6fd710b94ddf90ae8f0c5e4a86544daf1ebc5055ad036863d34d2b87ca"
    assert all(key.isascii() and key.isprintable() and len(key) <= 255 for key in keys)


def test_a_folder_is_all_files_below_it_but_hidden_ones_and_links_to_folders(tmp_path: Path) -> None:
    for name in ("b.txt", "sub/a.txt", ".hidden", ".git/config"):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    found = papers([tmp_path / "in", tmp_path / "in" / "b.txt", tmp_path / "in" / ".hidden"])
    assert [paper.title for paper in found] == ["b.txt", "sub/a.txt", ".hidden"]


def test_what_cannot_be_submitted_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("nothing", "no such file"), ("empty", "no file in"), ("pipe", "not a regular file")):
        with pytest.raises(SubmissionError, match=why):
            papers([tmp_path / name])


def test_a_title_is_text_of_at_most_200_characters_whatever_the_name(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))
    odd.write_text("x")
    deep = tmp_path / "deep" / ("d" * 150) / ("f" * 150)
    deep.parent.mkdir(parents=True)
    deep.write_text("x")
    titles = [paper.title for paper in papers([odd, tmp_path / "deep"])]
    assert titles[0] == "?.txt"
    assert len(titles[1]) == TITLE_CHARACTERS
    assert titles[1].endswith("d/" + "f" * 150)


def test_the_samples_are_a_text_a_markdown_a_png_and_a_pdf() -> None:
    assert sorted(file.suffix for file in sample_documents()) == [".md", ".pdf", ".png", ".txt"]


class Team:
    """A new team's `oncommit submit` against a running portal."""

    def __init__(self, client: Client, folder: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        reach = {"ONCOMMIT_URL": client.url, "ONCOMMIT_TOKEN": client.token}
        self.env = {**clean, "PYTHONPATH": str(ROOT), **reach}
        self.client = client
        self.folder = folder

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "ops.cli", "submit", *map(str, arguments)]

    def submit(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env={**self.env, **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def write(self, *names: str) -> Path:
        folder = self.folder / "papers"
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"content of {name}\n")
        return folder

    @property
    def jobs(self) -> int:
        return rows(self.client)["jobs"]


# A client sees no difference between the servers.
ONE_SERVER = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)


@pytest.fixture(scope="module")
def house(
    session_server: Server, guardian: Guardian, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A portal for the tests of this module; it takes 1,000 bytes, and nobody renders for it."""
    session_server.start()
    name = f"t_{secrets.token_hex(6)}"
    with session_server.connect() as conn:
        conn.execute(CREATE_FROM_TEMPLATE.format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
    with session_server.connect(name) as admin:
        database = Database(session_server, name, admin, f"slot_{name}")
        nowhere: Any = SimpleNamespace(url="redis://127.0.0.1:1/0")
        processes = Processes(tmp_path_factory.mktemp("house"), guardian, database, nowhere)
        yield House(database, processes.portal(ONCOMMIT_MAX_DOCUMENT_BYTES="1000"), processes)
        processes.close()
    with session_server.connect() as conn:
        conn.execute(DROP.format(sql.Identifier(name)))


@pytest.fixture
def team(house: House, tmp_path: Path) -> Iterator[Team]:
    """A new team of that portal."""
    client = house.client()
    yield Team(client, tmp_path)
    client.http.close()


@ONE_SERVER
def test_the_same_command_again_gives_the_same_jobs_and_a_run_id_new_ones(team: Team) -> None:
    folder = team.write("a.txt", "b.txt")
    both = ("--kind", "page", "--kind", "thumbnail", "--json")
    first, again, other = (team.submit(folder, *both, *more) for more in ((), (), ("--run-id", "second")))
    assert (first.returncode, again.returncode, other.returncode) == (0, 0, 0), first.stderr + again.stderr
    ids = [{job["id"] for job in json.loads(done.stdout)["jobs"]} for done in (first, again, other)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 4
    assert ids[0].isdisjoint(ids[2])
    assert all(job["replayed"] for job in json.loads(again.stdout)["jobs"])
    assert not any(job["replayed"] for job in json.loads(first.stdout)["jobs"])
    assert team.jobs == 8


@ONE_SERVER
def test_a_file_that_is_refused_does_not_keep_the_others_out(team: Team) -> None:
    folder = team.write("good.txt")
    (folder / "large.txt").write_bytes(b"x" * 1001)
    (folder / "secret.txt").symlink_to("nowhere")
    done = team.submit(folder)
    assert done.returncode == 1
    assert "large.txt: 413" in done.stderr
    assert "good.txt" in done.stdout
    assert team.jobs == 1


@ONE_SERVER
def test_an_empty_file_is_told_with_what_to_do_and_not_sent(team: Team) -> None:
    folder = team.write("good.txt")
    (folder / "empty.txt").touch()
    done = team.submit(folder)
    assert done.returncode == 1
    assert "empty.txt: the file is empty, so there is nothing to preview: leave it out" in done.stderr
    assert team.jobs == 1


@ONE_SERVER
def test_ctrl_c_ends_the_following_of_jobs_at_once(house: House, team: Team) -> None:
    command = team.command(team.write("a.txt", "b.txt"), "--wait")
    process = subprocess.Popen(command, env=team.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    both = "open_streams 2.0"
    eventually(lambda: both in house.portal.page("/metrics"), timeout=90, describe="two streams are open")
    process.send_signal(signal.SIGINT)
    # Well before the next heartbeat of a stream would wake whoever reads it: that comes after 15 s.
    eventually(lambda: process.poll() is not None, timeout=10)
    assert process.returncode == INTERRUPTED
    assert b"Traceback" not in process.communicate()[1]


@ONE_SERVER
def test_a_wrong_token_is_one_line_that_says_what_to_do(team: Team) -> None:
    folder = team.write("a.txt")
    done = team.submit(folder, ONCOMMIT_TOKEN="oc_wrong")
    assert done.returncode == 1
    assert "401" in done.stderr
    assert "ONCOMMIT_TOKEN" in done.stderr
    assert "oc_wrong" not in done.stderr
    assert "`Authorization: Bearer <token>` with a token" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@ONE_SERVER
def test_the_token_may_lie_in_a_file(team: Team) -> None:
    folder = team.write("a.txt")
    file = team.folder / "token"
    file.write_text(team.env.pop("ONCOMMIT_TOKEN") + "\n")
    assert team.submit(folder, ONCOMMIT_TOKEN_FILE=str(file)).returncode == 0
    assert team.jobs == 1
    assert team.submit(folder, ONCOMMIT_TOKEN_FILE="nowhere").returncode == 2


@ONE_SERVER
def test_an_interrupted_submission_is_completed_by_the_same_command(team: Team) -> None:
    names = [f"{n:03}.txt" for n in range(100)]
    folder = team.write(*names)
    process = subprocess.Popen(team.command(folder), env=team.env, stdout=subprocess.DEVNULL)
    eventually(lambda: team.jobs > 0, every=0.002, describe="the first job")
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = team.jobs
    done = team.submit(folder, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["jobs"]
    assert len({job["id"] for job in told}) == team.jobs == len(names)
    assert before <= sum(job["replayed"] for job in told) < len(names)


@ONE_SERVER
def test_waiting_ends_by_itself_and_tells_what_has_not_ended(team: Team) -> None:
    done = team.submit(team.write("a.txt"), "--wait", "--timeout", "0")
    assert done.returncode == LIMIT_REACHED
    assert "0 of 1 succeeded" in done.stderr
    assert "still queued" in done.stderr


@ONE_SERVER
def test_a_batch_is_accepted_once_and_another_file_makes_another(team: Team) -> None:
    folder = team.write("a.txt", "b.txt")
    both = ("--batch", "--kind", "page", "--kind", "thumbnail", "--json")
    first, again = (team.submit(folder, *both) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    told = [json.loads(done.stdout)["jobs"] for done in (first, again)]
    asked = [(name, kind) for name in ("a.txt", "b.txt") for kind in ("page", "thumbnail")]
    assert [(job["title"], job["kind"]) for job in told[0]] == asked
    assert [job["id"] for job in told[0]] == [job["id"] for job in told[1]]
    assert [{job["replayed"] for job in jobs} for jobs in told] == [{False}, {True}]
    assert (team.jobs, rows(team.client)["batches"], rows(team.client)["requests"]) == (4, 1, 1)
    (folder / "c.txt").write_text("c")
    assert team.submit(folder, *both).returncode == 0
    assert (team.jobs, rows(team.client)["batches"]) == (10, 2)


@ONE_SERVER
def test_of_a_batch_with_a_file_that_is_refused_nothing_is_accepted(team: Team) -> None:
    folder = team.write("good.txt")
    (folder / "large.txt").write_bytes(b"x" * 1001)
    done = team.submit(folder, "--batch", "--wait")
    assert done.returncode == 1
    assert "large.txt: 413" in done.stderr
    assert team.jobs == 0


@ONE_SERVER
def test_following_a_batch_ends_with_the_time_and_tells_what_has_not_ended(team: Team) -> None:
    done = team.submit(team.write("a.txt", "b.txt"), "--batch", "--wait", "--timeout", "1")
    assert done.returncode == LIMIT_REACHED
    assert "2 queued" in done.stdout
    assert "0 of 2 succeeded" in done.stderr


@ONE_SERVER
def test_nobody_at_the_address_ends_with_the_patience(team: Team) -> None:
    done = team.submit(team.write("a.txt"), "--url", "http://127.0.0.1:1", "--patience", "0")
    assert done.returncode == 1
    assert "no portal answers at http://127.0.0.1:1" in done.stderr


@ONE_SERVER
def test_ctrl_c_ends_it_soon_though_the_portal_is_away_and_the_patience_long(team: Team) -> None:
    command = team.command(team.write("a.txt"), "--url", "http://127.0.0.1:1", "--patience", "600")
    process = subprocess.Popen(command, env=team.env, stderr=subprocess.PIPE)
    # Connecting to a closed port fails at once: from then on it only waits between tries.
    eventually(lambda: _has_threads(process.pid), describe="the upload has begun")
    process.send_signal(signal.SIGINT)
    eventually(lambda: process.poll() is not None, timeout=10)
    assert process.returncode == INTERRUPTED
    process.communicate()


def _has_threads(pid: int) -> bool:
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


@ONE_SERVER
def test_following_a_batch_outlives_a_portal_that_is_killed_and_started_again(
    processes: Processes, database: Database, tmp_path: Path
) -> None:
    portal = processes.portal()
    client = House(database, portal, processes).client()
    client.http.close()
    team = Team(client, tmp_path)
    command = team.command(team.write("a.txt", "b.txt"), "--batch", "--wait", "--json", "--timeout", "60")
    process = subprocess.Popen(command, env=team.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: "open_streams 1.0" in portal.page("/metrics"), describe="a stream is open")
    portal.kill()
    portal.restart().wait_ready()
    database.admin.execute("SELECT cancel_job(NULL, id, 'test', 'test') FROM jobs")
    told, lines = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [job["status"] for job in json.loads(told)["jobs"]] == ["cancelled"] * 2
    assert "2 cancelled" in lines.decode()


@ONE_SERVER
def test_documents_become_previews(processes: Processes, database: Database, tmp_path: Path) -> None:
    processes.relay(ready=False)
    processes.worker(ready=False)
    portal = processes.portal()
    client = House(database, portal, processes).client()
    client.http.close()
    team = Team(client, tmp_path)
    previews = tmp_path / "previews"
    done = team.submit(*sample_documents(), "--wait", "--json", "--previews", previews, "--timeout", "50")
    assert done.returncode == 0, done.stderr
    _polled_no_job(portal.log_lines(), "jobs")
    told = json.loads(done.stdout)
    assert [job["status"] for job in told["jobs"]] == ["succeeded"] * 4
    assert all(job["attempts"] == 1 and job["seconds"] > 0 for job in told["jobs"])
    assert sorted(told["previews"]) == sorted(str(file) for file in previews.iterdir())
    for file in previews.iterdir():
        with Image.open(file) as image:
            assert image.format == "PNG"
    assert len([line for line in processes.renders() if line["phase"] == "end"]) == 4
    told = team.submit(
        *sample_documents(), "--batch", "--wait", "--json", "--timeout", "50", "--kind", "thumbnail"
    )
    assert told.returncode == 0, told.stderr
    assert [job["status"] for job in json.loads(told.stdout)["jobs"]] == ["succeeded"] * 4
    assert "4 succeeded" in told.stderr
    _polled_no_job(portal.log_lines(), "batches")


def _polled_no_job(lines: list[dict[str, Any]], what: str) -> None:
    routes = [line["route"] for line in lines if line.get("event") == "answered"]
    after = routes[routes.index(f"/v1/{what}") :]
    assert [route for route in after if route.startswith(f"/v1/{what}/") and route.endswith("_id}/events")]
    assert "/v1/jobs/{job_id}" not in after
