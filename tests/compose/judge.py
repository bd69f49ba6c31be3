"""What is claimed of the containers and the jobs, from facts to misses: pure functions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: service -> how many containers of it run; `migrate` has ended by then.
RUNNING: Mapping[str, int] = {"postgres": 1, "valkey": 1, "portal": 2, "relay": 2, "worker": 2}


def service(container: Mapping[str, Any]) -> str:
    """Return the service that a container belongs to."""
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def healthy(containers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many containers of each service are running and say that they do their work."""
    found: dict[str, int] = {}
    for container in containers:
        state = container["State"]
        if state["Running"] and state.get("Health", {}).get("Status") == "healthy":
            found[service(container)] = found.get(service(container), 0) + 1
    return found


def troubles(containers: Sequence[Mapping[str, Any]], killed: str) -> list[str]:
    """Return the containers that the engine had to start again, or that ran out of memory.

    `killed` is the service that was killed on purpose.
    """
    found: list[str] = []
    for container in containers:
        name, state = container["Name"].lstrip("/"), container["State"]
        if container["RestartCount"]:
            found.append(f"{name} was restarted {container['RestartCount']} times")
        if state["OOMKilled"]:
            found.append(f"{name} ran out of memory")
        if not state["Running"] and service(container) != killed and state["ExitCode"]:
            found.append(f"{name} ended with {state['ExitCode']}")
    return found


def unconfined(container: Mapping[str, Any]) -> list[str]:
    """Return what a container may that none of ours should."""
    host, name = container["HostConfig"], container["Name"].lstrip("/")
    published = [one for bound in (host["PortBindings"] or {}).values() for one in bound]
    claims = {
        "runs as root": container["Config"]["User"].split(":")[0] in {"", "0", "root"},
        "can write its root file system": not host["ReadonlyRootfs"],
        "has no init": not host["Init"],
        "has no memory limit": not host["Memory"],
        "has no limit of processes": not host["PidsLimit"],
        "has no limit of processor time": not host["NanoCpus"],
        "keeps capabilities": host["CapDrop"] != ["ALL"],
        "may gain privileges": "no-new-privileges:true" not in (host["SecurityOpt"] or []),
        "is published beyond loopback": any(one["HostIp"] != "127.0.0.1" for one in published),
    }
    return [f"{name} {text}" for text, wrong in claims.items() if wrong]


def told(secrets: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Return the places whose text has one of the secrets in it."""
    return [place for place, text in places.items() if any(secret in text for secret in secrets)]


def as_text(container: Mapping[str, Any]) -> str:
    """Return everything that the engine tells about a container: variables, command lines, health."""
    return json.dumps(container)
