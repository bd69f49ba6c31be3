"""Decide how a claim ends after an error: one pure function, and the backoff it uses."""

import hashlib
from dataclasses import dataclass

from actors.clean import MAX_CLASS_LENGTH, clean
from actors.errors import InfrastructureError, PermanentError, RenderError, RenderStopped, Stop
from db.claims import How

#: So often trouble that is not the document's fault is free. A document that makes its machine fail
#: looks just like that, so after ten each release spends its attempt and the job ends some day.
FREE_RELEASES = 10
_MAX_DOUBLINGS = 40  # 2**40 ms is 34 years: above every cap, and far from any overflow


@dataclass(frozen=True, slots=True)
class Decision:
    """How the claim ends: `delay_ms` until the next dispatch is due, `spend` keeps the attempt spent."""

    how: How
    delay_ms: int
    error_class: str
    error_text: str
    spend: bool


def decide(
    error: BaseException,
    *,
    attempt: int,
    max_attempts: int,
    releases: int,
    message_id: str,
    base_ms: int,
    cap_ms: int,
) -> Decision:
    """Return what an error means for the claim.

    `attempt` counts from 1 and includes the one that failed; `releases` counts those before this one.
    An exception that is no RenderError is a fault of this program and is treated as the document's, so
    that it is bounded as well; but for an OSError, which is trouble of this machine.
    """
    how, delay_ms, spend = How.DIED, 0, True
    last = attempt >= max_attempts
    match error:
        case RenderStopped(why=Stop.CANCELLED):
            how = How.CANCELLED
        case RenderStopped():
            how, spend = How.RELEASED, False  # an orderly deploy never spends
        # Not the renderer's, whose errors come as RenderErrors: this machine has no descriptor or disk left,
        # may not enter the store, lost its mount.
        case InfrastructureError() | OSError():
            spend = releases >= FREE_RELEASES
            if not (spend and last):
                how, delay_ms = How.RELEASED, backoff(releases + 1, message_id, base_ms, cap_ms)
        case PermanentError():
            pass
        case _ if not last:
            how, delay_ms = How.FAILED, backoff(attempt, message_id, base_ms, cap_ms)
        case _:
            pass
    return Decision(how, delay_ms, _name(error), clean(str(error)) or type(error).__name__, spend)


def backoff(failures: int, message_id: str, base_ms: int, cap_ms: int) -> int:
    """Return the milliseconds to wait after so many failures: doubling from `base_ms`, never above `cap_ms`.

    The upper half of each wait is jitter, so that jobs that failed together do not return together; it is
    drawn from the message id, so a repeated call answers the same.
    """
    full = min(cap_ms, base_ms << min(max(failures, 1) - 1, _MAX_DOUBLINGS))
    share = int.from_bytes(hashlib.sha256(message_id.encode()).digest()[:8], "big")
    return full // 2 + ((full - full // 2) * share >> 64)


def _name(error: BaseException) -> str:
    name = error.error_class if isinstance(error, RenderError) else type(error).__name__
    return clean(name, MAX_CLASS_LENGTH) or "Error"
