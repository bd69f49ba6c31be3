"""`oncommit` with stand-ins for portal, relay and workers."""

from pathlib import Path

from ops import cli, services

STANDIN = str(Path(__file__).with_name("standin.py"))

services.PORTAL = (STANDIN, "portal")
services.RELAY = (STANDIN, "relay")
services.WORKER = (STANDIN, "worker")
cli.main()
