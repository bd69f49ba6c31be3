"""Whether the tests run against containers: an engine answers, the images of `compose/` build, one serves."""

import fcntl
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from docker.errors import DockerException  # type: ignore[import-untyped]  # it brings no types

from ops.binaries import FORCE
from support.containers import POSTGRES_IMAGE, VALKEY_IMAGE, ContainerValkey, remove_left

ROOT = Path(__file__).parents[2]
#: `1`: containers, and an error where they are not to be had; `0`: none. Else: where they are to be had.
CONTAINERS = "ONCOMMIT_TEST_CONTAINERS"
#: pytest-xdist sets it in the processes that run the tests: the one that started them has decided.
XDIST = "PYTEST_XDIST_WORKER"
# An engine that is there answers within milliseconds; one that hangs is none.
ENGINE_SECONDS = 10.0
# Packages come from an index that may be slow.
BUILD_SECONDS = 900.0
SAID_LINES = 12


class NoContainersError(RuntimeError):
    """There can be no containers; the message says why, for the session's header."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to use containers.

    Attributes:
        told: what the session's header says about it.
        trouble: an engine is there, but it or the images do not work: the reader shall not miss it.

    """

    use: bool
    told: str
    trouble: bool = False


@cache
def decision() -> Decision:
    """Find out, once for the session and its processes.

    Raises:
        pytest.UsageError: containers are asked for and not to be had.

    """
    asked = os.environ.get(CONTAINERS, "")
    if asked not in {"", "0", "1"}:
        raise pytest.UsageError(f"{CONTAINERS}: 0 or 1, not {asked!r}")
    if asked == "0":
        return Decision(use=False, told=f"turned off by {CONTAINERS}=0")
    forced = os.environ.get(FORCE, "")
    if not asked and forced not in {"", "container"}:
        return Decision(use=False, told=f"left out by {FORCE}={forced}")
    if XDIST in os.environ:
        return Decision(use=True, told="yes")
    try:
        version = engine()
    except NoContainersError as error:
        found = Decision(use=False, told=str(error))
    else:
        found = _tried(version)
    if asked == "1" and not found.use:
        raise pytest.UsageError(f"{CONTAINERS}=1, but {found.told}")
    os.environ[CONTAINERS] = "1" if found.use else "0"  # for the processes that run the tests
    return found


def _tried(version: str) -> Decision:
    try:
        for image in (POSTGRES_IMAGE, VALKEY_IMAGE):
            build(image)
        remove_left()
        try_one()
    except NoContainersError as error:
        told = f"AN ENGINE ANSWERS, BUT ITS CONTAINERS CANNOT BE USED ({CONTAINERS}=0: do not try): {error}"
        return Decision(use=False, told=told, trouble=True)
    return Decision(use=True, told=f"yes, of Docker {version}")


def engine() -> str:
    """Return the version of the Docker engine that answers.

    Raises:
        NoContainersError: none does.

    """
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoContainersError("no Docker engine answers") from error
    return done.stdout.strip()


def build(image: str) -> None:
    """Build one of the project's images; what is built already costs a second.

    Raises:
        NoContainersError: it cannot be built; the message has the end of what was said.

    """
    name = image.removeprefix("oncommit-").removesuffix(":local")
    # Sessions run side by side: the second finds the layers of the first.
    with Path(tempfile.gettempdir(), f"oncommit-image-{os.getuid()}.lock").open(
        "a", encoding="ascii"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            done = subprocess.run(
                ["docker", "build", "--quiet", "--tag", image, "--file", f"compose/{name}.Dockerfile", "."],
                cwd=ROOT, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise NoContainersError(f"{image} is not built after {BUILD_SECONDS:g} s") from error
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-SAID_LINES:])
        raise NoContainersError(f"{image} cannot be built:\n{said}")


def try_one() -> None:
    """Start a container and ask it: an engine may be of another machine, or may start nothing.

    Raises:
        NoContainersError: it does not answer at a loopback port.

    """
    container = ContainerValkey({})
    try:
        container.begin()
    # OSError: what the engine answers over HTTP.
    except (DockerException, OSError, RuntimeError) as error:
        raise NoContainersError(f"a container of {VALKEY_IMAGE} does not serve: {error}") from error
    finally:
        container.remove()
