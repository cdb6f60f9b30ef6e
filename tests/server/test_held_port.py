"""A port that workers listen on: nobody else may, and whoever holds it takes no connection."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tokend_server.config import Address
from tokend_server.transport.held_port import HeldPort

HOSTS = ["127.0.0.1", "0.0.0.0", "localhost", "::1", "::"]


@contextmanager
def held(address: Address, *, shared: bool = False) -> Iterator[HeldPort]:
    port = HeldPort(address, shared=shared)
    try:
        yield port
    finally:
        port.close()


@contextmanager
def listener(host: str, port: int, *, joins: bool) -> Iterator[socket.socket]:
    """A server as gRPC would have it: with or without SO_REUSEPORT."""
    family, _, _, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(joins))
        made.bind(sockaddr)
        made.listen()
        yield made


@pytest.fixture(params=HOSTS)
def host(request) -> str:
    if ":" in request.param and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    return request.param


def test_nobody_else_has_the_port_but_those_who_join(host):
    with held(Address(host=host, port=0)) as port:
        number = port.address.port
        assert number
        with pytest.raises(OSError, match=r"cannot listen on .* \(listen\)"):
            HeldPort(port.address, shared=False)
        with pytest.raises(OSError, match="in use"), listener(host, number, joins=False):
            pass
        with listener(host, number, joins=True), listener(host, number, joins=True):
            with pytest.raises(OSError, match=f"{number}"):
                HeldPort(port.address, shared=False)
            with held(port.address, shared=True):
                pass
    with held(port.address):
        pass


def test_whoever_listens_keeps_it_from_being_held(host):
    for joins in (False, True):
        with listener(host, 0, joins=joins) as other:
            address = Address(host=host, port=other.getsockname()[1])
            with pytest.raises(OSError, match=str(address.port)):
                HeldPort(address, shared=False)


def test_every_connection_goes_to_those_who_listen():
    with held(Address(host="127.0.0.1", port=0)) as port, ExitStack() as stack:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port.address.port))
        listeners = [
            stack.enter_context(listener("127.0.0.1", port.address.port, joins=True)) for _ in range(2)
        ]
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", port.address.port), timeout=5))
        n_taken = [n_waiting(each) for each in listeners]
        assert sum(n_taken) == 40
        assert min(n_taken) > 0


def n_waiting(listener: socket.socket) -> int:
    """Take the connections that wait at a listener."""
    listener.setblocking(False)
    for n in range(1000):
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return n
    raise AssertionError("they do not end")


def test_a_server_that_has_just_closed_its_connections_is_passed_over():
    with (
        held(Address(host="127.0.0.1", port=0)) as port,
        listener("127.0.0.1", port.address.port, joins=True) as server,
    ):
        client = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
        # Who closes first keeps the port in TIME_WAIT.
        connection.close()
        client.close()
    with held(port.address):
        pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_here_is_refused_with_a_clear_line(host):
    with pytest.raises(OSError, match=rf"cannot listen on {host}:1 \(listen\)"):
        HeldPort(Address(host=host, port=1), shared=False)
