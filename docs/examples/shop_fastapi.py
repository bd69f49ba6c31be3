"""Orders with FastAPI and SQLAlchemy. `uvicorn shop_fastapi:app` serves it."""

import os
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from db import outbox

# postgresql://..., by the driver that the outbox speaks
engine = create_engine(os.environ["SHOP_DATABASE_URL"].replace("postgresql:", "postgresql+psycopg:", 1))
app = FastAPI()


class Base(DeclarativeBase):
    """Of all tables."""


class Order(Base):
    """One order."""

    __tablename__ = "orders"
    __table_args__ = {"schema": "shop"}  # noqa: RUF012 -- as SQLAlchemy wants it
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Wanted(BaseModel):
    """What is ordered."""

    item: str


def transaction() -> Iterator[Session]:
    """Commit when the request went well, roll back when it raised."""
    with Session(engine) as session, session.begin():
        yield session


# scope="function": the commit comes before the answer, so that 201 means committed.
Transaction = Annotated[Session, Depends(transaction, scope="function")]


@app.post("/orders", status_code=201)
def order(wanted: Wanted, session: Transaction) -> dict[str, int]:
    """Take an order: the order and the message that asks for its receipt are one commit."""
    new = Order(item=wanted.item)
    session.add(new)
    session.flush()  # gives it its id
    conn = session.connection().connection.driver_connection  # psycopg's, in this session's transaction
    outbox.append(conn, "send_receipt", [new.id], lane="shop", queue="receipts")
    if wanted.item == "moon":
        raise HTTPException(409, "sold out")  # neither the order nor the message
    return {"order": new.id}
