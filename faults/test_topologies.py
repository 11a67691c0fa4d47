"""The deployments that the cells of the matrix share."""

import socket
from collections.abc import Iterator

import pytest
from topologies import Pool
from world import Proxies, Server, find_server

SUBSCRIBE = b"*2\r\n$9\r\nSUBSCRIBE\r\n$4\r\nnews\r\n"


@pytest.fixture
def pool() -> Iterator[Pool]:
    proxies = Proxies()
    pool = Pool(find_server(), proxies)
    yield pool
    pool.close()
    proxies.close()


def hears(server: Server, port: int, within: float) -> bool:
    """Whether a message of the server comes through this proxy."""
    try:
        with socket.create_connection(("127.0.0.1", port), within) as ear:
            ear.sendall(SUBSCRIBE)
            if b"subscribe" not in ear.recv(100):
                return False
            server("PUBLISH", "news", "hello")
            return b"hello" in ear.recv(100)
    except OSError:
        return False


FAULTS = {
    "mute": (1,),
    "silent": (1,),
    "refuse": (1,),
    "arm": ("SUBSCRIBE", 0, "hole", 0),
}


@pytest.mark.parametrize("word", FAULTS)
def test_a_fault_ends_with_its_cell(pool: Pool, word: str) -> None:
    with pool.lent("sentinel") as first:
        server, port = first.place_of("any")
        pool.proxies(word, port, *FAULTS[word])
        if word != "arm":
            assert not hears(server, port, 1)
    with pool.lent("sentinel") as second:
        assert second is first
        assert hears(server, port, 20)
