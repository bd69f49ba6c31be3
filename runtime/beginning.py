"""How a process of oncommit begins: settings, logs, traces; or a line that says why not."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from runtime import logs, tracing
from runtime.settings import Settings, SettingsError, settings

MISCONFIGURED = 2  #: The exit code; as of wrong usage.


@contextmanager
def begun(process: str) -> Generator[Settings]:
    """Give the settings of a process whose logs and traces are named `process`; afterwards no span is lost.

    Raises:
        SystemExit: with MISCONFIGURED, when a variable is wrong; the reason has been told.

    """
    try:
        config = settings()
    except SettingsError as error:
        print(f"oncommit {process}: {error}", file=sys.stderr)  # noqa: T201 -- before there are logs
        raise SystemExit(MISCONFIGURED) from None
    logs.configure(process, config.log_level)
    try:
        tracing.configure(process, config.traces)
    except SettingsError as error:
        logs.get_logger(__name__).critical("cannot start", reason=str(error))
        raise SystemExit(MISCONFIGURED) from None
    try:
        yield config
    except SettingsError as error:  # what only its user could judge
        logs.get_logger(__name__).critical("cannot start", reason=str(error))
        raise SystemExit(MISCONFIGURED) from None
    finally:
        tracing.shutdown()
