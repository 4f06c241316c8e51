"""Servers for end-to-end tests: one that they share, and what holds after each of them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from serving import Server, start_server, stop_server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("serve"), "--max-num-seqs", "8")
    yield server
    assert stop_server(server) == 0, server.describe()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared one; after each test it is alive and empty."""
    yield shared_server
    shared_server.check_idle()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server for one test; what it leaves running is ended."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        started.append(start_server(tmp_path, *flags))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
