"""Faults: what may go wrong, each a small class with `inject` and `heal`."""

from ..fault import Fault
from . import database, network, postgres, processes, redis, relay, store

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for module in (redis, relay, postgres, database, processes, network, store)
    for fault in module.FAULTS
}

__all__ = ["FAULTS", "Fault"]
