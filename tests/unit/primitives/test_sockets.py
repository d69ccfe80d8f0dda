"""Free ports, the addresses behind a name, and whether a unix socket is served."""

import socket
from pathlib import Path

import pytest

from flettner.primitives.address import Address
from flettner.primitives.sockets import find_free_port, is_listening, probe_socket, resolve
from tests.support.ports import free_port


def test_the_first_free_port_that_is_not_taken_is_found() -> None:
    first, second, third = free_port(), free_port(), free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()

        port = find_free_port((first, second, third), taken={second}, host="127.0.0.1")

    assert port == third


def test_the_kernel_chooses_a_port_if_none_is_named() -> None:
    assert 0 < find_free_port() < 1 << 16


def test_a_port_with_old_connections_is_the_second_choice() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = int(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first keeps the connection in TIME_WAIT
    other = free_port()

    assert find_free_port((port, other), host="127.0.0.1") == other
    assert find_free_port((port,), host="127.0.0.1") == port


def test_without_a_free_port_there_is_an_error() -> None:
    with pytest.raises(OSError, match="no port is free"):
        find_free_port((8101, 8102), taken={8101, 8102})


async def test_an_ip_address_is_its_own_and_a_name_has_all_its_addresses() -> None:
    assert await resolve(Address("192.0.2.1", 80)) == [Address("192.0.2.1", 80)]
    assert Address("127.0.0.1", 80) in await resolve(Address("localhost", 80))


async def test_a_name_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(OSError, match=r"."):
        await resolve(Address("no-such-name.invalid", 80))


def test_a_socket_is_served_while_a_process_listens(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    assert not is_listening(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        probe_socket(path)
        assert is_listening(path)

    assert not is_listening(path)
    with pytest.raises(ConnectionRefusedError):
        probe_socket(path)
