"""Renderer children: each way a render can go wrong ends as a readable error, and hurts only itself."""

import ast
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.child import RendererChild, Renderers
from actors.errors import (
    DocumentError,
    DocumentMissing,
    InfrastructureError,
    PermanentError,
    RenderCrashed,
    RenderError,
    RenderOutputTooLarge,
    RenderTimeout,
)
from actors.frames import read_frame
from actors.renderer import Limits
from support.waiting import eventually

LIMITS = Limits(memory_bytes=128 << 20, output_bytes=1 << 20)
CONTENT = b"hello\n"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    yield
    eventually(lambda: not renderers_alive(), timeout=5, describe="renderer children are gone")


def renderers_alive() -> list[psutil.Process]:
    """Return the living children of this process' own fork server; other tests' workers have theirs."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            server = child.parent()
            mine = server is not None and server.parent() == psutil.Process() and _is_forked(server)
            if mine and _is_forked(child) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def _is_forked(process: psutil.Process) -> bool:
    return "forkserver" in " ".join(process.cmdline())


def request(document: Path, **simulate: Any) -> dict[str, Any]:
    return {
        "document": str(document),
        "digest": f"sha256:{hashlib.sha256(CONTENT).hexdigest()}",
        "kind": "page",
        "attempt": 1,
        "simulate": simulate,
    }


def failure(document: Path, target: str, *, timeout: float = 5.0, limits: Limits = LIMITS) -> RenderError:
    """Return the error with which one render by an evil renderer ends; its child must be gone then."""
    child = RendererChild(limits, f"support.evil_renderers:{target}")
    with pytest.raises(RenderError) as caught:
        child.render(request(document), timeout)
    assert not child.alive
    assert not child.reusable
    return caught.value


def test_a_warm_child_renders_again_and_gives_the_same_bytes(document: Path) -> None:
    child = RendererChild(LIMITS)
    first, pid = child.render(request(document), 10), child.pid
    assert child.render(request(document), 10) == first
    assert (child.pid, child.reusable) == (pid, True)
    assert pid in [one.pid for one in renderers_alive()]  # what every test here looks for at its end
    child.close()


def test_the_first_render_of_a_child_finds_everything_imported(document: Path) -> None:
    # A child that fails is replaced, and whose job comes next would wait for its imports.
    child = RendererChild(LIMITS, "support.evil_renderers:told_imports")
    assert child.render(request(document), 10) == b""
    child.close()


@pytest.mark.parametrize("target", ["hang", "stubborn"])
def test_a_hang_ends_at_its_time_limit(document: Path, target: str) -> None:
    begun = time.monotonic()
    error = failure(document, target, timeout=0.5)
    assert isinstance(error, RenderTimeout)
    assert str(error) == "longer than 0.5 s"
    assert time.monotonic() - begun < 10


def test_a_memory_bomb_is_told_as_such(document: Path) -> None:
    error = failure(document, "bomb")
    assert (error.error_class, str(error)) == ("RenderMemory", "more than 128 MB of memory")
    assert isinstance(error, DocumentError)


def test_a_child_that_keeps_memory_is_not_used_again(document: Path) -> None:
    child = RendererChild(LIMITS, "support.evil_renderers:leak")
    child.render(request(document), 10)
    assert not child.reusable
    child.close()


@pytest.mark.parametrize(("target", "text"), [("segfault", "signal 11 (SIGSEGV)"), ("leave", "exit code 3")])
def test_a_crash_says_how_the_child_ended(document: Path, target: str, text: str) -> None:
    error = failure(document, target)
    assert isinstance(error, RenderCrashed)
    assert text in str(error)


def test_an_endless_output_is_refused(document: Path) -> None:
    roomy = Limits(memory_bytes=512 << 20, output_bytes=1 << 20)
    error = failure(document, "endless", limits=roomy)
    assert (error.error_class, str(error)) == ("RenderOutputTooLarge", f"{64 << 20} bytes, {1 << 20} allowed")


def test_a_frame_that_announces_too_much_is_not_read(document: Path) -> None:
    child = RendererChild(LIMITS)
    child._limits = Limits(memory_bytes=1, output_bytes=100)
    with pytest.raises(RenderOutputTooLarge):
        child.render(request(document), 10)
    assert not child.alive


def test_the_standard_streams_lead_nowhere(document: Path) -> None:
    child = RendererChild(LIMITS, "support.evil_renderers:chatter")
    assert child.render(request(document), 10).startswith(b"\x89PNG")
    child.close()


def test_a_renderer_may_not_write_files(document: Path) -> None:
    assert failure(document, "write_file").error_class == "OSError"


@pytest.mark.parametrize("target", ["fork", "fork_twice", "fork_and_return"])
def test_a_fork_is_a_failure_and_nothing_of_it_survives(document: Path, target: str) -> None:
    error = failure(document, target)
    # Root is not bound by RLIMIT_NPROC: there the fork is found out; otherwise it is refused.
    assert error.error_class in {"RenderForked", "BlockingIOError"}


def test_an_exit_is_an_error_with_a_clean_and_short_text(document: Path) -> None:
    error = failure(document, "raise_exit")
    assert error.error_class == "SystemExit"
    assert str(error).isprintable()
    assert len(str(error)) <= 2048


def test_a_child_has_no_secrets_no_sockets_and_a_group_of_its_own(document: Path) -> None:
    os.environ["ONCOMMIT_TEST_SECRET"] = "canary"
    child = RendererChild(LIMITS, "support.evil_renderers:tell")
    told = ast.literal_eval(child.render(request(document), 10).decode())
    del os.environ["ONCOMMIT_TEST_SECRET"]
    assert told["environment"] == []
    assert told["descriptors"] <= 5, "standard streams, the socket, and the listing itself"
    assert (told["core"], told["group"], told["drivers"]) == (0, True, [])
    child.close()


@pytest.mark.parametrize(
    ("simulate", "kind", "name"),
    [
        ({"crash": True}, RenderCrashed, "RenderCrashed"),
        ({"crash": "child"}, RenderCrashed, "RenderCrashed"),
        ({"hang": True}, RenderTimeout, "RenderTimeout"),
        ({"allocate_mb": 4000}, DocumentError, "RenderMemory"),
        ({"fail_first": 1}, DocumentError, "SimulatedFailure"),
        ({"fail_permanently": True}, PermanentError, "SimulatedPermanentFailure"),
    ],
)
def test_simulated_faults(
    document: Path, simulate: dict[str, Any], kind: type[RenderError], name: str
) -> None:
    child = RendererChild(LIMITS)
    with pytest.raises(kind) as caught:
        child.render(request(document, **simulate), 1.0)
    assert caught.value.error_class == name


def test_faults_that_do_not_concern_this_attempt_change_nothing(document: Path) -> None:
    child = RendererChild(LIMITS)
    plain = child.render(request(document), 10)
    faults = {"fail_first": 1, "sleep_ms": 1, "allocate_mb": 1}
    assert child.render({**request(document, **faults), "attempt": 2}, 10) == plain
    child.close()


def test_a_document_that_is_gone_is_not_its_own_fault(document: Path) -> None:
    child = RendererChild(LIMITS)
    with pytest.raises(DocumentMissing) as caught:
        child.render(request(document.with_name("gone")), 10)
    assert isinstance(caught.value, InfrastructureError)


def test_another_thread_can_end_a_render(document: Path) -> None:
    child = RendererChild(LIMITS)
    threading.Timer(0.2, child.kill).start()
    begun = time.monotonic()
    with pytest.raises(RenderCrashed):
        child.render(request(document, hang=True), 30)
    assert time.monotonic() - begun < 10
    child.kill()  # gone already: harmless


def test_a_child_that_is_told_to_end_just_as_it_answers_is_not_lent_again(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderers = Renderers(LIMITS)
    child = renderers.take()

    def answered_and_killed(*arguments: Any, **words: Any) -> Any:
        answer = read_frame(*arguments, **words)
        child.kill()  # from the heartbeat: a cancel that came this moment
        return answer

    with monkeypatch.context() as patched:
        patched.setattr("actors.child.read_frame", answered_and_killed)
        assert child.render(request(document), 10), "what it answered is there"
    assert not child.reusable
    renderers.give(child)
    other = renderers.take()
    assert other is not child
    assert other.render(request(document), 10), "the next document does not pay for it"
    renderers.give(other)
    renderers.close()


def test_a_child_that_is_given_back_after_the_close_ends(document: Path) -> None:
    renderers = Renderers(LIMITS)
    child = renderers.take()
    renderers.close()
    child.render(request(document), timeout=20)
    renderers.give(child)
    assert not child.alive


def test_children_are_reused_and_the_dead_are_replaced(document: Path) -> None:
    renderers = Renderers(LIMITS)
    renderers.warm_up(1)
    child = renderers.take()
    renderers.give(child)
    assert renderers.take() is child
    renderers.give(child)
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: not child.alive)
    other = renderers.take()
    assert other is not child
    assert other.render(request(document), 10)
    renderers.give(other)
    renderers.close()


PARENT = """
import sys
from actors.child import RendererChild
from actors.renderer import Limits
if __name__ == "__main__":
    child = RendererChild(Limits(128 << 20, 1 << 20), sys.argv[1])
    print(child.pid, flush=True)
    if sys.argv[1].startswith("support"):
        child.render({"document": sys.argv[2], "digest": "", "kind": "", "attempt": 1, "simulate": {}}, 60)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "target",
    ["actors.mock_renderer:render", "support.evil_renderers:hang", "support.evil_renderers:stubborn"],
)
def test_a_child_does_not_outlive_its_worker_even_in_the_middle_of_a_render(
    tmp_path: Path, document: Path, target: str
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
    worker = subprocess.Popen(
        [sys.executable, str(script), target, str(document)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    with worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert psutil.pid_exists(pid)
        worker.kill()
    eventually(lambda: not psutil.pid_exists(pid), timeout=5, describe="the child ends with its worker")


LEAVING = """
import sys
from actors.child import RendererChild
from actors.renderer import Limits
if __name__ == "__main__":
    child = RendererChild(Limits(128 << 20, 1 << 20))
    print(child.pid, flush=True)
    sys.exit(3)
"""


def test_a_process_that_leaves_without_closing_its_children_does_not_wait_for_them(tmp_path: Path) -> None:
    script = tmp_path / "leaving.py"
    script.write_text(LEAVING)
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ended.returncode == 3
    eventually(lambda: not psutil.pid_exists(int(ended.stdout)), timeout=5)


def test_a_stop_that_signals_every_process_leaves_children_their_grace(document: Path) -> None:
    renderers = Renderers(LIMITS)
    renderers.warm_up(1)
    for process in psutil.Process().children(recursive=True):
        if "forkserver" in " ".join(process.cmdline()):
            process.terminate()
    child = renderers.take()
    assert child.render(request(document, sleep_ms=200), 10)
    renderers.give(child)
    renderers.close()
