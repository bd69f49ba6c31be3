"""Claim -> render -> finish: the workers. `dramatiq actors:setup` runs them."""


def setup() -> None:
    """Make this process a worker: logs, broker, actor and the threads around it.

    Dramatiq calls it in each worker process, so that each has connections of its own.

    Raises:
        SettingsError: a variable is wrong.

    """
    # Not at the top: the renderer child imports `actors` too, and needs no driver, broker or settings.
    from actors.worker_process import set_up  # noqa: PLC0415

    set_up()
