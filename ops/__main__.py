"""The way in: `oncommit`, also `python -m ops`. Ctrl-C is obeyed in silence from the first moment.

The commands take half a second to import. Nothing has been started by then, so there is nothing to undo.
"""

import os
import signal
from types import FrameType


def _leave(_: int, __: FrameType | None) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)  # ops.exit_codes.INTERRUPTED: nothing may be imported within an import


def main() -> None:
    """Run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a background job of a shell ignores it, and goes on doing so
        signal.signal(signal.SIGINT, _leave)
    from ops import cli  # noqa: PLC0415 -- what takes so long

    signal.signal(signal.SIGINT, before)
    cli.main()


if __name__ == "__main__":
    main()
