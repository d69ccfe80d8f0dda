"""Addresses: HOST:PORT and unix sockets."""

import pytest

from flettner.primitives.address import Address, UnixSocket, is_loopback, parse_ip


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:8080", "::1", 8080),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("vllm.chat.svc:8000", "vllm.chat.svc", 8000),
        ("localhost:0", "localhost", 0),
        ("192.0.2.1:65535", "192.0.2.1", 65535),
    ],
)
def test_an_address_reads_as_it_is_written(text: str, host: str, port: int) -> None:
    address = Address.parse(text)

    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        ":8080",
        "[]:8080",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:http",
        "127.0.0.1:-1",
        "127.0.0.1:65536",
        "127.0.0.1:000080",
        "127.0.0.1:\N{FULLWIDTH DIGIT EIGHT}",
        "::1:8080",
        "[localhost]:8080",
        "[::1:8080",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^listen must be HOST:PORT, such as 127\.0\.0\.1:8080"):
        Address.parse(text, "listen")


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard", "reached_at"),
    [
        ("127.0.0.1", True, False, "127.0.0.1"),
        ("127.9.9.9", True, False, "127.9.9.9"),
        ("::1", True, False, "::1"),
        ("::ffff:127.0.0.1", True, False, "::ffff:127.0.0.1"),
        ("localhost", True, False, "127.0.0.1"),
        ("0.0.0.0", False, True, "127.0.0.1"),  # noqa: S104 - read, not bound
        ("::", False, True, "127.0.0.1"),
        ("", False, True, "127.0.0.1"),
        ("192.0.2.1", False, False, "192.0.2.1"),
        ("127.0.0.1.example.org", False, False, "127.0.0.1.example.org"),
    ],
)
def test_an_address_says_who_reaches_it(host: str, loopback: bool, wildcard: bool, reached_at: str) -> None:
    address = Address(host, 80)

    assert (address.is_loopback, address.is_wildcard) == (loopback, wildcard)
    assert is_loopback(host) == loopback
    assert address.reached_here() == Address(reached_at, 80)


def test_a_client_needs_a_port() -> None:
    assert Address.parse("127.0.0.1:1", least_port=1).port == 1
    with pytest.raises(ValueError, match="port of 1 to 65535"):
        Address.parse("127.0.0.1:0", least_port=1)


def test_the_host_of_a_url_has_brackets_around_ipv6_only() -> None:
    assert Address("::1", 80).url_host == "[::1]"
    assert Address("example.org", 80).url_host == "example.org"


def test_an_ipv4_address_in_ipv6_is_read_as_ipv4() -> None:
    assert str(parse_ip("::ffff:192.0.2.1")) == "192.0.2.1"
    assert str(parse_ip("2001:db8::1")) == "2001:db8::1"
    assert parse_ip("example.org") is None


def test_a_unix_socket_reads_as_it_is_written() -> None:
    listener = UnixSocket.parse("unix:/run/flettner/api.sock")

    assert str(listener) == "unix:/run/flettner/api.sock"
    assert listener.is_loopback


@pytest.mark.parametrize(
    "text", ["", "/run/a.sock", "unix:", "unix:api.sock", "unix:/a\n", f"unix:/{'x' * 107}"]
)
def test_a_unix_socket_needs_an_absolute_path_that_the_kernel_takes(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        UnixSocket.parse(text)
