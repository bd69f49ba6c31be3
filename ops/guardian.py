"""The guardian: a tiny process that outlives its launcher just long enough to end what that had started.

It holds the reading end of a pipe. The launcher writes one JSON line for each process it starts or has
ended. End of file means that the launcher is gone, SIGKILL included; then the guardian ends what is still
listed, latest first, and finally whatever carries the launcher's tag in its environment. It lives in its
own session, so neither Ctrl-C nor a closing terminal reaches it.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from types import TracebackType
from typing import IO, Self

from ops import ending, proctable
from ops.ending import Manner

TAG = "ONCOMMIT_STACK"
# Longest that closing an orderly launcher waits for its guardian, which by then has nothing to end.
LEAVE_SECONDS = 30.0


class Guardian:
    """The launcher's side. `tag` goes into the environment of every process that is started.

    `keep` are file descriptors that the guardian holds too, such as a lock that must last until it is done.
    """

    def __init__(self, keep: tuple[int, ...] = ()) -> None:
        self.tag = secrets.token_hex(16)
        self._process = subprocess.Popen(  # noqa: S603 -- this very module
            [sys.executable, "-m", "ops.guardian", self.tag],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=keep,
            text=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return what to add to the environment of every process that is started."""
        return {TAG: self.tag}

    @property
    def pid(self) -> int:
        """Return the guardian's own pid."""
        return self._process.pid

    def watch(self, pid: int, manner: Manner) -> None:
        """End `pid` in this manner should the launcher die first."""
        self._tell({"watch": pid, "steps": manner.steps})

    def forget(self, pid: int) -> None:
        """Leave `pid` alone: it has ended."""
        self._tell({"forget": pid})

    def _tell(self, line: dict[str, object]) -> None:
        # A guardian that was killed by hand must not keep the launcher from an orderly stop.
        with contextlib.suppress(BrokenPipeError, ValueError):
            stdin = self._stdin()
            stdin.write(json.dumps(line) + "\n")
            stdin.flush()

    def _stdin(self) -> IO[str]:
        if self._process.stdin is None:
            raise AssertionError("the guardian is always started with a pipe")
        return self._process.stdin

    def close(self) -> None:
        """Let it end what is still listed, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin().close()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listen(lines: IO[str]) -> dict[int, Manner]:
    """Read until end of file; return what is still to be ended, in the order in which it was started."""
    watched: dict[int, Manner] = {}
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:  # the launcher died within a line
            break
        if "watch" in told:
            watched[told["watch"]] = Manner(tuple((step[0], step[1]) for step in told["steps"]))
        else:
            watched.pop(told["forget"], None)
    return watched


def main() -> None:
    """Run the guardian: `python -m ops.guardian TAG`, with the pipe as standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")  # hold no folder that somebody wants to remove
    tag = sys.argv[1]
    watched = _listen(sys.stdin)
    for pid in reversed(watched):
        ending.end(pid, watched[pid])
    ending.kill(proctable.tagged(f"{TAG}={tag}"))


if __name__ == "__main__":
    main()
