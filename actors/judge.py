"""Read a message's arguments before anything is claimed: what this version cannot read is put aside.

The relay looks at columns only, the broker at the message's frame and version; the arguments are read
here for the first time.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

_ARGUMENTS = 2


class Unreadable(ValueError):
    """The arguments are not those of render_preview; the text says why and is kept with the message."""


def judge(message_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[UUID, int]:
    """Return the (job, dispatch number) that a render_preview message names.

    Raises:
        Unreadable: other arguments, or an id that names something else.

    """
    if len(args) != _ARGUMENTS or kwargs:
        raise Unreadable("other arguments than (job, dispatch number)")
    job_text, dispatch_no = args
    if not isinstance(dispatch_no, int) or isinstance(dispatch_no, bool) or not isinstance(job_text, str):
        raise Unreadable("arguments of other types")
    try:
        job = UUID(job_text)
    except ValueError as error:
        raise Unreadable("the job is no UUID") from error
    if message_id.partition("|")[2] != f"{job}.{dispatch_no}":
        raise Unreadable("the message id names another dispatch")
    return job, dispatch_no
