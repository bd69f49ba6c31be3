"""One world for every scenario of this folder: each has a history and traffic of its own in it."""

import random
from collections.abc import Iterator

import pytest

from .building import whole_world
from .scenario import Scenario
from .world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Start everything once; it is of one kind of server, since the decoders have tests of their own."""
    with whole_world(tmp_path_factory.mktemp("chaos")) as found:
        found.start()
        yield found


@pytest.fixture
def scenario(world: World) -> Iterator[Scenario]:
    """Begin a scenario with a little traffic."""
    found = Scenario(world, random.Random(0))
    found.begin()
    yield found
    found.end()
