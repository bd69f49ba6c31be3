"""procrastinate 3: a task that does nothing. `procrastinate --app=...procrastinate_app.app worker`.

A coroutine, which its documentation prefers for concurrency; jobs stay in the table, as is its default and
as ours do.
"""

import os

from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["RIVAL_DATABASE_URL"], min_size=8, max_size=16))


@app.task(name="nothing")
async def nothing(number: int) -> None:
    """Do nothing."""
