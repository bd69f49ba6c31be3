"""A Docker engine, and one Compose project on it that leaves nothing behind."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = ROOT / "compose" / "compose.yaml"
LABEL = "com.docker.compose.project"
# An engine that is there answers at once; images are built from a package index that may be slow.
ANSWER_SECONDS = 20.0
WORK_SECONDS = 1800.0
#: An image of a registry that cannot be reached is not waited for longer.
PULL_SECONDS = 120.0


class NoEngineError(RuntimeError):
    """There is no Docker engine with Compose; the message says why."""


class EngineError(RuntimeError):
    """A docker command failed; the message has what it said."""


def docker(*arguments: str, seconds: float = WORK_SECONDS, env: Mapping[str, str] | None = None) -> str:
    """Run `docker ...` and return its standard output.

    Raises:
        EngineError: it failed or took too long.

    """
    try:
        done = subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"docker {' '.join(arguments)}: no end after {seconds:g} s") from error
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-40:])
        raise EngineError(f"docker {' '.join(arguments)}: exit code {done.returncode}\n{said}")
    return done.stdout


def require_engine() -> str:
    """Return what engine and Compose answer, in one line.

    Raises:
        NoEngineError: one of them does not.

    """
    if shutil.which("docker") is None:
        raise NoEngineError("there is no docker command")
    try:
        engine = docker("version", "--format", "{{.Server.Version}}", seconds=ANSWER_SECONDS).strip()
    except EngineError as error:
        raise NoEngineError(f"no Docker engine answers: {str(error).splitlines()[-1]}") from error
    try:
        compose = docker("compose", "version", "--short", seconds=ANSWER_SECONDS).strip()
    except EngineError as error:
        raise NoEngineError("docker has no compose command: install the plugin") from error
    return f"Docker {engine}, Compose {compose}"


def to_be_had(image: str) -> bool:
    """Tell whether an image is here, or can be pulled."""
    for command in (["image", "inspect", image], ["pull", "--quiet", image]):
        try:
            docker(*command, seconds=PULL_SECONDS)
        except EngineError:
            continue
        return True
    return False


class Project:
    """A Compose project under a name of its own, with its own secrets and free ports of this machine."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.env = dict(env)

    def compose(self, *arguments: str, seconds: float = WORK_SECONDS) -> str:
        """Run `docker compose ...` on this project and return its standard output."""
        return docker(
            "compose",
            "--project-name",
            self.name,
            "--file",
            str(FILE),
            *arguments,
            seconds=seconds,
            env=self.env,
        )

    def config(self) -> dict[str, Any]:
        """Return the whole file as Compose understands it, with the profiles' services."""
        found: dict[str, Any] = json.loads(self.compose("--profile", "*", "config", "--format", "json"))
        return found

    def containers(self, service: str | None = None) -> list[dict[str, Any]]:
        """Return what the engine knows of each container, by name; those of `oncommit` are run by hand."""
        filters = [f"label={LABEL}={self.name}"]
        filters += [f"label=com.docker.compose.service={service}"] if service else []
        ids = docker("ps", "--all", "--quiet", *(f"--filter={one}" for one in filters)).split()
        found: list[dict[str, Any]] = json.loads(docker("inspect", *ids)) if ids else []
        return sorted(found, key=lambda container: str(container["Name"]))

    def urls(self, service: str, port: int) -> list[str]:
        """Return where the containers of a service are published on this machine."""
        bound = [c["NetworkSettings"]["Ports"][f"{port}/tcp"][0] for c in self.containers(service)]
        return [f"http://{one['HostIp']}:{one['HostPort']}" for one in bound]

    def logs(self, tail: str = "all") -> dict[str, str]:
        """Return what each container wrote, by its name."""
        return {c["Name"].lstrip("/"): _both("logs", "--tail", tail, c["Id"]) for c in self.containers()}

    def down(self) -> None:
        """Take everything away, with the volumes."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans")

    def left(self) -> list[str]:
        """Return the containers, networks and volumes that bear the project's name."""
        own = f"--filter=label={LABEL}={self.name}"
        lists: Sequence[Sequence[str]] = (
            ("ps", "--all", "--format", "container {{.Names}}"),
            ("network", "ls", "--format", "network {{.Name}}"),
            ("volume", "ls", "--format", "volume {{.Name}}"),
        )
        return [line for command in lists for line in docker(*command, own).splitlines()]


def _both(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=False, errors="replace", timeout=60
    )
    return done.stdout + done.stderr
