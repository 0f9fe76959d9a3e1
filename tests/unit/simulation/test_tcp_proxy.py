"""The faulty network between real sockets: connections are cut, delayed, slowed down, refused, reset, and repaired."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace_core.testing.tcp_proxy import FaultyNetwork
from tests.worlds.waiting import until

TIMEOUT_S = 60.0
SILENCE_S = 0.3


class Echo:
    """A server that echoes the received bytes, and records them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.got = b""
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                self.got += data
                connection.sendall(data)
            connection.close()

    def close(self) -> None:
        for each in (self._socket, *self.connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # a close alone waits for the thread that is in accept or recv
            each.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


#: Local port of a socket of the test -> the name under which the network knows it.
NAMES: dict[int, str] = {}


@pytest.fixture
def network() -> Iterator[FaultyNetwork]:
    NAMES.clear()
    with FaultyNetwork(lambda port, to: NAMES.get(port, "somebody")) as made:
        yield made


@pytest.fixture
def connect(network: FaultyNetwork, echo: Echo) -> Iterator[Callable[..., socket.socket]]:
    port = network.listen("echo", echo.port)
    opened = []

    def connect(name: str = "somebody") -> socket.socket:
        made = socket.socket()
        made.settimeout(TIMEOUT_S)
        made.bind(("127.0.0.1", 0))
        NAMES[made.getsockname()[1]] = name
        made.connect(("127.0.0.1", port))
        opened.append(made)
        return made

    yield connect
    for each in opened:
        each.close()


def says(connection: socket.socket, data: bytes) -> bytes:
    """Receive as many bytes as were sent."""
    connection.sendall(data)
    back = b""
    while len(back) < len(data):
        piece = connection.recv(len(data) - len(back))
        if not piece:
            break
        back += piece
    return back


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        return connection.recv(1) == b"?"
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)


def is_refused(connect: Callable[..., socket.socket]) -> bool:
    """Whether a new connection is reset, perhaps before connect() returns."""
    try:
        return is_reset(connect("a"))
    except ConnectionResetError:
        return True


def is_reset(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b"?"
    except ConnectionResetError:
        return True


def test_in_fair_weather_everything_gets_through_and_ends_are_reported(
    network: FaultyNetwork, connect: Callable[..., socket.socket], echo: Echo
) -> None:
    connection = connect()
    data = bytes(range(256)) * 4000
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    back = b""
    while len(back) < len(data):
        back += connection.recv(1 << 16)
    sender.join()
    assert back == data
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b"", "the end comes back"
    connection.close()
    until(lambda: network.connections() == 0, "the connection is forgotten")


def test_who_opened_a_connection_decides_which_rules_it_meets(
    network: FaultyNetwork, connect: Callable[..., socket.socket]
) -> None:
    a, b = connect("a"), connect("b")
    assert says(a, b"hello") == says(b, b"hello") == b"hello"
    network.cut("a", "echo")
    assert says(b, b"still") == b"still"
    a.sendall(b"lost")
    assert is_silent(a)
    network.heal("a", "echo")
    assert is_reset(a), "bytes were lost: such a connection does not go on as if nothing had been"
    assert says(connect("a"), b"again") == b"again"


def test_a_cut_in_one_direction_lets_the_other_through(
    network: FaultyNetwork, connect: Callable[..., socket.socket], echo: Echo
) -> None:
    connection = connect("a")
    assert says(connection, b"hello") == b"hello"
    network.cut("echo", "a", one_way=True)
    connection.sendall(b" there")
    until(lambda: echo.got == b"hello there", "it arrives")
    assert is_silent(connection), "its answer does not"


def test_a_new_connection_into_a_cut_network_is_silent(
    network: FaultyNetwork, connect: Callable[..., socket.socket]
) -> None:
    network.cut("a", "echo")
    connection = connect("a")
    connection.sendall(b"hello")
    assert is_silent(connection)


def test_a_stall_loses_nothing(network: FaultyNetwork, connect: Callable[..., socket.socket]) -> None:
    connection = connect("a")
    assert says(connection, b"hello") == b"hello"
    network.stall("a", "echo")
    connection.sendall(b"late")
    assert is_silent(connection)
    network.heal("a", "echo")
    assert connection.recv(4) == b"late"


def test_a_delay_keeps_the_order(network: FaultyNetwork, connect: Callable[..., socket.socket]) -> None:
    network.delay("a", "echo", 150)
    connection = connect("a")
    started = time.monotonic()
    assert says(connection, b"0123456789") == b"0123456789"
    assert time.monotonic() - started >= 0.3, "there and back"


def test_a_throttle_takes_its_time(network: FaultyNetwork, connect: Callable[..., socket.socket]) -> None:
    network.throttle("a", "echo", 400_000, one_way=True)
    connection = connect("a")
    started = time.monotonic()
    assert says(connection, bytes(200_000)) == bytes(200_000)
    assert time.monotonic() - started >= 0.3


def test_refused_connections_are_reset_and_open_ones_go_on(
    network: FaultyNetwork, connect: Callable[..., socket.socket]
) -> None:
    connection = connect("a")
    assert says(connection, b"hello") == b"hello"
    network.refuse("a", "echo")
    assert is_refused(connect)
    assert says(connection, b"on") == b"on"
    assert says(connect("b"), b"hello") == b"hello"
    network.heal()
    assert says(connect("a"), b"hello") == b"hello"


def test_a_reset_breaks_what_is_open_and_nothing_else(
    network: FaultyNetwork, connect: Callable[..., socket.socket]
) -> None:
    a, b = connect("a"), connect("b")
    assert says(a, b"hello") == says(b, b"hello") == b"hello"
    assert network.reset("a", "echo") == 1
    assert is_reset(a)
    assert says(b, b"on") == b"on"
    assert says(connect("a"), b"again") == b"again"


def test_a_server_that_is_not_there_is_noticed_at_once(
    network: FaultyNetwork, connect: Callable[..., socket.socket], echo: Echo
) -> None:
    connection = connect("a")
    assert says(connection, b"hello") == b"hello"
    echo.close()
    assert is_refused(connect)


def test_what_is_open_in_a_cut_network_ends_with_the_heal_though_nobody_said_a_word(
    network: FaultyNetwork, connect: Callable[..., socket.socket], echo: Echo
) -> None:
    connection = connect("a")
    assert says(connection, b"hello") == b"hello"
    network.cut("a", "echo")
    echo.close()  # its end is not forwarded
    assert is_silent(connection)
    network.heal("a", "echo")
    assert is_reset(connection)
    until(lambda: network.connections() == 0, "the connection is forgotten")
