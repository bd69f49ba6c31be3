"""faststream-outbox 0.19, the table as the queue: `faststream run ...rivals.faststream_app:app`.

As tuned as it gets: asyncpg, rows fetched 500 at a time and looked for every 10 ms, ends written 100 at a
time in one statement, no validation of arguments, no logging of each message.
"""

import logging
import os

from faststream import FastStream
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

WORKERS, FETCH, FLUSH = 8, 500, 100
metadata = MetaData()
table = make_outbox_table(metadata, table_name="faststream_outbox")
engine = create_async_engine(os.environ["RIVAL_DATABASE_URL"], pool_size=16)
broker = OutboxBroker(engine, outbox_table=table, apply_types=False, log_level=logging.WARNING, logger=None)


@broker.subscriber(
    "jobs",
    max_workers=WORKERS,
    fetch_batch_size=FETCH,
    min_fetch_interval=0.01,
    max_fetch_interval=0.05,
    terminal_flush_batch_size=FLUSH,
)
async def nothing(_body: object) -> None:
    """Do nothing."""


app = FastStream(broker, logger=None)


@app.on_startup
async def make_table() -> None:
    """Make the table if it is not there."""
    async with engine.begin() as conn:
        await conn.run_sync(metadata.create_all)
