"""docs/adopt.md: its examples are these files, and each is run: a real application, relay, worker."""

import re
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from psycopg import sql

from ops.ports import free_port
from support.kinds import kinds
from support.postgres import Database
from support.processes import Processes, Running
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DOC = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
# An application sees the same on every server; the relay's roads have tests of their own.
ONE_SERVER = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)

APPLICATIONS: dict[str, list[str]] = {
    "shop_fastapi": ["-m", "uvicorn", "shop_fastapi:app", "--port", "{port}"],
    "shop_django": [str(EXAMPLES / "shop_django.py"), "runserver", "--noreload", "127.0.0.1:{port}"],
}
# Every try to write a receipt, also one that changes nothing.
COUNT_RUNS = b"""
CREATE TABLE shop.runs (order_id bigint);
CREATE FUNCTION shop.count_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  INSERT INTO shop.runs VALUES (NEW.order_id);
  RETURN NEW;
END $$;
CREATE TRIGGER count_run BEFORE INSERT ON shop.receipts FOR EACH ROW EXECUTE FUNCTION shop.count_run();
"""


@dataclass
class Shop:
    """A running application, and what its database says."""

    database: Database
    processes: Processes
    url: str
    environment: dict[str, str]

    def order(self, item: str) -> httpx.Response:
        return httpx.post(f"{self.url}/orders", json={"item": item}, timeout=30, trust_env=False)

    def worker(self) -> Running:
        argv = [
            sys.executable,
            "-m",
            "dramatiq",
            "receipts:setup",
            "-p",
            "1",
            "-t",
            "2",
            "--path",
            str(EXAMPLES),
        ]
        return self.processes.start("receipts", argv, self.environment)

    def numbers(self, table: str) -> list[int]:
        column = "id" if table == "orders" else "order_id"
        query = sql.SQL("SELECT {} FROM {} ORDER BY 1")
        rows = self.database.admin.execute(
            query.format(sql.Identifier(column), sql.Identifier("shop", table))
        )
        return [row[0] for row in rows.fetchall()]

    def intents(self) -> int:
        row = self.database.admin.execute("SELECT count(*) FROM outbox").fetchone()
        assert row is not None
        return int(row[0])

    def settled(self, orders: list[int]) -> bool:
        return self.numbers("runs") == orders and self.intents() == 0


@pytest.fixture
def start(database: Database, processes: Processes) -> Iterator[Callable[[str], Shop]]:
    """Start the relay, prepare the shop's tables as the page says, and start an application."""
    role = f"shop_{secrets.token_hex(4)}"  # roles belong to the cluster, which other tests share
    password = secrets.token_urlsafe(16)
    processes.relay()
    admin, name = database.admin, sql.Identifier(role)
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(password)))
    prepare = (EXAMPLES / "shop.sql").read_text(encoding="utf-8")
    admin.execute(re.sub(r"\bTO shop;", f"TO {role};", prepare).encode())
    admin.execute(COUNT_RUNS)

    def started(application: str) -> Shop:
        port = str(free_port())
        environment = {
            "ONCOMMIT_DATABASE_URL": database.url("worker"),
            "ONCOMMIT_REDIS_URL": processes.valkey.url,
            "SHOP_DATABASE_URL": f"postgresql://{role}:{password}@127.0.0.1:{database.server.port}/{database.name}",
            "SHOP_SECRET": secrets.token_urlsafe(16),
            "PYTHONPATH": f"{ROOT}:{EXAMPLES}",
        }
        argv = [sys.executable, *(word.format(port=port) for word in APPLICATIONS[application])]
        running = processes.start(application, argv, environment | {"ONCOMMIT_PORT": port})
        eventually(lambda: running.get("/") == 404, timeout=60, describe=running.log_text)
        return Shop(database, processes, running.url, environment)

    yield started
    processes.close()
    admin.execute(sql.SQL("DROP OWNED BY {}").format(name))
    admin.execute(sql.SQL("DROP ROLE {}").format(name))


@ONE_SERVER
@pytest.mark.parametrize("application", APPLICATIONS)
def test_committed_orders_get_one_receipt_and_rolled_back_ones_none_also_after_redis_is_lost(
    start: Callable[[str], Shop], application: str
) -> None:
    shop = start(application)
    worker = shop.worker()
    first = shop.order("tea")
    assert first.status_code == 201, first.text
    orders = [first.json()["order"]]
    eventually(lambda: shop.settled(orders), timeout=40, describe=worker.log_text)

    assert shop.order("moon").status_code == 409
    assert shop.numbers("orders") == orders
    assert shop.intents() == 0

    worker.stop()
    orders += [shop.order("milk").json()["order"] for _ in range(3)]
    messages = "oncommit:receipts:messages"
    eventually(lambda: shop.processes.valkey.client.hlen(messages) == 3)
    shop.processes.valkey.client.flushall()
    worker = shop.worker()
    eventually(lambda: shop.settled(orders), timeout=40, describe=worker.log_text)
    assert shop.numbers("receipts") == shop.numbers("orders") == orders


@pytest.mark.parametrize("name", ["shop.sql", "receipts.py", "shop_fastapi.py", "shop_django.py"])
def test_the_page_shows_the_files_that_are_run(name: str) -> None:
    language = {"sql": "sql", "py": "python"}[name.rpartition(".")[2]]
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    shown = re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
    assert text in shown, f"docs/adopt.md does not show docs/examples/{name} as it is"
