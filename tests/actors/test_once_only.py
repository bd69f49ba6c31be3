"""A stop that is signalled twice at one moment, to the process and by Dramatiq's main process, acts once."""

import os
import signal
import subprocess
import sys
import time

#: A handler with an Event in it acted twice, or stood still, within some dozens.
ROUNDS = 10_000
SECONDS = 60.0

STORMED = f"""
import signal
from actors.shutdown import once_only

acted = 0
def act(number, frame):
    global acted
    acted += 1

def nothing(number, frame):
    pass

signal.signal(signal.SIGTERM, nothing)
print("ready", flush=True)
for _ in range({ROUNDS}):
    signal.signal(signal.SIGTERM, nothing)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    nothing(0, None)  # what has come already is handled now, by the handler that does nothing
    before = acted
    signal.signal(signal.SIGTERM, act)
    once_only(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for _ in range(50):
        pass
    assert acted <= before + 1, (acted, before)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # at its end Python gives handlers up
print("over", acted > 0, flush=True)
"""


def test_a_signal_within_its_own_handler_neither_acts_again_nor_stands_still() -> None:
    child = subprocess.Popen([sys.executable, "-c", STORMED], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        deadline = time.monotonic() + SECONDS
        while child.poll() is None:
            assert time.monotonic() < deadline, "it stands still in its handler"
            for _ in range(3):
                os.kill(child.pid, signal.SIGTERM)
            for _ in range(400):  # some 10 us: a flood without a gap would let handlers nest without an end
                pass
        assert child.stdout.read() == "over True\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
