"""Processes end with all they started; the guardian does it when the launcher cannot."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops import ending, proctable
from ops.account import Account, servers_account
from ops.ending import Manner
from ops.guardian import Guardian
from ops.home import Home, HomeError
from ops.processes import Command, Process, StartError
from ops.tending import FIRST_SECONDS, LAST_SECONDS, WELL_SECONDS, Tended, Tending, next_delay
from support.waiting import eventually

DEAF = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(900)"
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True, stdout=-1)\n"
    "child.stdout.readline()\n"
    "print('child', child.pid, flush=True)\n"
    "time.sleep(900)\n"
)


def start(folder: Path, guardian: Guardian, *code: str, manner: Manner | None = None) -> Process:
    command = Command(
        name="one", argv=[sys.executable, "-c", *code], log=folder / "one.log", env=dict(os.environ),
        manner=manner or Manner(((signal.SIGTERM, 0.2),)),
    )  # fmt: skip
    process = Process(command, guardian)
    process.start()
    return process


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: proctable.find(child.pid) is None)
    os.kill(child.pid, 0)  # the kernel still knows the pid
    child.wait()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, guardian: Guardian) -> None:
    process = start(tmp_path, guardian, DEAF)
    eventually(lambda: "up" in process.log_text())
    assert process.end() == -signal.SIGKILL


def test_a_frozen_process_is_ended_with_its_own_handler(tmp_path: Path, guardian: Guardian) -> None:
    code = (
        "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\n"
        "print('up', flush=True)\nsignal.pause()"
    )
    process = start(tmp_path, guardian, code, manner=Manner(((signal.SIGTERM, 10.0),)))
    eventually(lambda: "up" in process.log_text())
    process.freeze()
    assert process.end() == 7


def test_a_child_in_a_session_of_its_own_ends_too(tmp_path: Path, guardian: Guardian) -> None:
    process = start(tmp_path, guardian, PARENT, DEAF)
    eventually(lambda: "child" in process.log_text())
    child = int(process.log_text().split()[1])
    process.end()
    assert proctable.find(child) is None


def test_the_guardian_ends_what_an_unlisted_start_left() -> None:
    """A launcher may be killed between starting a process and telling the guardian."""
    guardian = Guardian()
    child = subprocess.Popen([sys.executable, "-c", DEAF], env=os.environ | guardian.environment)
    eventually(lambda: proctable.tagged("=".join(*guardian.environment.items())))
    guardian.close()
    assert proctable.find(child.pid) is None
    child.wait()


def test_the_guardian_spares_what_it_was_told_to_forget_and_what_is_not_ours(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.DEVNULL)
    guardian = Guardian()
    process = start(tmp_path, guardian, "pass")
    eventually(lambda: not process.running)
    process.end()
    guardian.close()
    assert proctable.find(bystander.pid) is not None
    ending.kill_family(bystander.pid)
    bystander.wait()


def test_the_guardian_is_not_reached_by_a_signal_to_its_launchers_group() -> None:
    guardian = Guardian()
    assert os.getsid(guardian.pid) == guardian.pid
    # It ignores signals once Python runs its main; its folder is then the root.
    eventually(lambda: Path(f"/proc/{guardian.pid}/cwd").readlink() == Path("/"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian.pid, number)
    assert proctable.find(guardian.pid) is not None
    guardian.close()
    assert proctable.find(guardian.pid) is None


def test_a_program_that_is_not_there_is_named(tmp_path: Path, guardian: Guardian) -> None:
    command = Command(name="ghost", argv=["/nonexistent/ghost"], log=tmp_path / "l", env={})
    with pytest.raises(StartError, match="ghost: cannot run /nonexistent/ghost"):
        Process(command, guardian).start()


def test_the_lock_keeps_a_second_stack_out_and_names_the_first(tmp_path: Path) -> None:
    me = Account(os.geteuid(), os.getegid(), other=False)
    first, second = Home(tmp_path / "home", me), Home(tmp_path / "home", me)
    first.lock()
    with pytest.raises(HomeError, match=str(os.getpid())):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_secret_stays_the_same_and_is_never_half_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", Account(os.geteuid(), os.getegid(), other=False))
    value = home.secret("one")
    assert home.secret("one") == value
    assert len(value) == 43
    file = home.path / "secrets" / "one"
    assert file.stat().st_mode & 0o777 == 0o600
    file.with_suffix(".new").write_text("half")  # what a crash in the middle leaves
    home.keep_secret("one", "another")
    assert home.secret("one") == "another"


def test_the_servers_account_is_never_root() -> None:
    account = servers_account()
    assert account.uid != 0
    assert account.other == (os.geteuid() == 0)


def test_backoff_doubles_is_capped_and_forgets_after_a_good_run() -> None:
    delays = [0.0]
    for _ in range(10):
        delays.append(next_delay(delays[-1], ran_seconds=0.1))
    assert delays[1] == FIRST_SECONDS
    assert delays == sorted(delays)
    assert delays[-1] == LAST_SECONDS
    assert next_delay(LAST_SECONDS, ran_seconds=WELL_SECONDS) == FIRST_SECONDS


def test_what_does_not_start_is_tried_again_later_and_keeps_nobody_from_starting() -> None:
    said: list[str] = []
    starts: list[str] = []

    def fail() -> None:
        starts.append("bad")
        raise StartError("no")

    tending = Tending(
        [
            Tended("bad", lambda: False, fail),
            Tended("good", lambda: "good" in starts, lambda: starts.append("good")),
        ],
        said.append,
    )
    assert tending.run_once(100.0) == ["bad", "good"]
    assert tending.run_once(100.0 + FIRST_SECONDS / 2) == []
    assert tending.run_once(100.0 + FIRST_SECONDS) == ["bad"]
    assert starts == ["bad", "good", "bad"]
    assert any("bad does not start" in text for text in said)
