"""The names of all failpoints, and what may be done there. A process refuses to start with any other."""

import re

NAMES = frozenset(
    {
        "accept.after_commit",
        "artifact.before",
        "claim.after",
        "claim.before",
        "finish.after",
        "finish.before",
        "heartbeat.before",
        "old.before_send",
        "relay.after_decode",
        "relay.after_publish",
        "relay.after_read",
        "relay.before_confirm",
        "relay.before_publish",
        "render.before",
    }
)


#: See runtime/failpoints.py.
ACTION = re.compile(r"(kill|raise)(@[1-9][0-9]*)?|pause:.+", re.ASCII)


def armed(text: str) -> dict[str, str]:
    """Return the action of each failpoint named in `ONCOMMIT_FAILPOINTS`.

    Raises:
        ValueError: a part is no `name=action`, or nothing in the code has that name or does that: it would
            never act, and a test that relies on it would prove nothing.

    """
    found = dict[str, str]()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, sep, action = (part.strip() for part in item.partition("="))
        if not sep:
            raise ValueError(f"{item!r} is no name=action")
        if name not in NAMES:
            raise ValueError(f"there is no failpoint {name!r}; there are: {', '.join(sorted(NAMES))}")
        if not ACTION.fullmatch(action):
            raise ValueError(f"failpoint {item!r}: there is kill, kill@N, raise, raise@N and pause:FILE")
        found[name] = action
    return found
