"""Put on a process's path, this makes its clock go an hour fast: `time.time` and `time.time_ns`."""

import time

AHEAD_SECONDS = 3600
_time, _time_ns = time.time, time.time_ns


def _fast() -> float:
    return _time() + AHEAD_SECONDS


def _fast_ns() -> int:
    return _time_ns() + AHEAD_SECONDS * 1_000_000_000


time.time, time.time_ns = _fast, _fast_ns
