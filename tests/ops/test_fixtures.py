"""The shared fixtures do what their names say."""

import socket
import sys

import psycopg
import pytest
import redis

from ops import proctable
from support.postgres import Database, Server
from support.processes import Processes
from support.proxy import Proxies
from support.valkey import Valkey
from support.waiting import eventually


def test_the_server_decodes_logically_and_says_which_plugin_it_has(server: Server) -> None:
    with server.connect() as conn:
        assert conn.execute("SHOW wal_level").fetchone() == ("logical",)
        assert conn.info.server_version // 10000 == server.version


def test_wal2json_is_allowed_where_it_is_installed(database: Database) -> None:
    plugin = database.server.decoder
    database.admin.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [database.slot, plugin])


def test_a_killed_server_comes_back_on_its_port_with_its_rows(server: Server, database: Database) -> None:
    database.admin.execute("INSERT INTO teams (id) VALUES ('red')")
    port = server.port
    server.restart("kill")
    assert server.port == port
    with server.connect(database.name) as conn:
        assert conn.execute("SELECT id FROM teams").fetchone() == ("red",)


def test_a_role_reaches_its_own_database_only_with_its_grants(database: Database) -> None:
    with database.connect("viewer") as conn:
        conn.execute("SELECT * FROM dispatch_counts")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM jobs")


def test_each_test_gets_an_empty_database(database: Database) -> None:
    assert database.admin.execute("SELECT count(*) FROM teams").fetchone() == (0,)


def test_a_killed_valkey_forgets_and_a_persistent_one_does_not(valkey: Valkey) -> None:
    valkey.client.set("k", "v")
    valkey.kill()
    with pytest.raises(redis.ConnectionError):
        valkey.client.get("k")
    valkey.start()
    assert valkey.client.get("k") is None
    valkey.persist("always")
    valkey.client.set("k", "v")
    valkey.kill()
    valkey.start()
    assert valkey.client.get("k") == b"v"
    valkey.kill()
    valkey.start(empty=True)
    assert valkey.client.get("k") is None


def test_a_frozen_valkey_keeps_its_connections_and_answers_after_the_thaw(valkey: Valkey) -> None:
    valkey.client.set("k", "v")
    impatient = redis.Redis(port=valkey.port, socket_timeout=0.2, retry=None)
    valkey.freeze()
    with pytest.raises(redis.TimeoutError):
        impatient.get("k")
    valkey.thaw()
    assert valkey.client.get("k") == b"v"


def test_valkey_can_be_starved(valkey: Valkey) -> None:
    valkey.config(maxmemory="1mb")
    with pytest.raises(redis.OutOfMemoryError):
        valkey.client.set("k", "v" * 3_000_000)


def test_a_cut_proxy_refuses_and_a_restored_one_passes(valkey: Valkey, proxies: Proxies) -> None:
    proxy = proxies.to(valkey.port)
    client = redis.Redis(port=proxy.port, retry=None, socket_timeout=2)
    assert client.ping()
    proxy.cut()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=1)
    proxy.restore()
    assert eventually(client.ping)


def test_a_blackhole_answers_nothing_until_it_ends(valkey: Valkey, proxies: Proxies) -> None:
    proxy = proxies.to(valkey.port)
    client = redis.Redis(port=proxy.port, retry=None, socket_timeout=0.2)
    assert client.ping()
    proxy.blackhole()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    proxy.restore()
    assert eventually(client.ping)


def test_a_process_is_ended_with_what_it_started(processes: Processes) -> None:
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    running = processes.start("parent", [sys.executable, "-c", script], {})
    running.wait_log("child ")
    child = int(running.log_text().split()[1])
    running.stop()
    assert proctable.find(child) is None
    assert running.returncode == -15
