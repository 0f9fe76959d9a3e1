"""A Kafka connection: frames, order of answers, back-pressure, limits, the end. No socket and no clock: the transport
is in memory, and a sweep is a second."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace_core.connections import AddressLimits
from headrace_core.errors import CoordinatorNotAvailableError
from headrace_kafka import connection as module
from headrace_kafka import connections
from headrace_kafka.budget import FETCH_BYTES_MIN, Answers
from headrace_kafka.call import AnswerParts, Call
from headrace_kafka.connection import FINISH_S, Connection
from headrace_kafka.connections import Connections
from headrace_kafka.rounds import Rounds
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.frames import REQUEST_BYTES_MAX, RequestHeader, finish, response_start
from headrace_kafka.wire.schema import Message, response_body
from tests.worlds.kafka_protocol import MemoryTransport, read_answer, request_frame
from tests.worlds.this_process import logged
from tests.worlds.waiting import until_async

MIB = 1024 * 1024


class World:
    """Connections whose handlers wait until the test answers. ``asked``: requests that were started and not yet
    answered, in order."""

    def __init__(self, **settings: Any) -> None:
        self.asked: list[tuple[int, Callable[[Any], None]]] = []
        base = KafkaSettings(queued_bytes_max=4 * MIB)
        self.connections = Connections(
            dataclasses.replace(base, **settings),
            cast("Any", None),
            cast("Any", None),
            {Api.METADATA: self._handle, Api.FIND_COORDINATOR: self._fail, Api.LIST_GROUPS: self._break},
            {Api.PRODUCE: self._produce},
        )
        self.connections.prepared.update(Api)

    def connect(self, host: str = "10.0.0.1") -> tuple[MemoryTransport, Connection]:
        transport, connection = MemoryTransport(host), Connection(self.connections, "PLAINTEXT")
        transport.connect(connection)
        return transport, connection

    async def _handle(self, call: Call, request: Message) -> dict[str, Any] | None:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.append((0, answer.set_result))
        try:
            return cast("dict[str, Any] | None", await answer)
        except asyncio.CancelledError:
            self.asked.append((-1, answer.set_result))
            raise

    async def _fail(self, call: Call, request: Message) -> dict[str, Any] | None:
        raise CoordinatorNotAvailableError("there is none")

    async def _break(self, call: Call, request: Message) -> dict[str, Any] | None:
        raise ZeroDivisionError

    def _produce(
        self, call: Call, header: RequestHeader, frame: bytes, answer: Callable[[AnswerParts | None], None]
    ) -> None:
        def reply(fields: dict[str, Any] | None) -> None:
            if fields is None:
                answer(None)
                return
            out = response_start(header.api, header.version, header.correlation_id)
            response_body(header.api, header.version).write(fields, out)
            answer((finish(out),))

        self.asked.append((header.correlation_id, reply))


def metadata(correlation_id: int) -> bytearray:
    return request_frame(Api.METADATA, 12, correlation_id, topics=[])


def produce(correlation_id: int, size: int = 10) -> bytearray:
    return request_frame(Api.PRODUCE, 9, correlation_id, body=bytes(size))


def answered(transport: MemoryTransport) -> list[int]:
    """The correlation ids of the answers that the client now reads."""
    data, ids = transport.client_reads(), []
    while data:
        (size,) = struct.unpack_from(">i", data)
        ids.append(struct.unpack_from(">i", data, 4)[0])
        data = data[4 + size :]
    return ids


async def settle() -> None:
    """Let the tasks that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def in_loop(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def test_requests_run_one_after_another_and_are_answered_in_order() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(metadata(1) + metadata(2)))
        await settle()
        assert len(world.asked) == 1
        world.asked.pop()[1]({"topics": []})
        await settle()
        assert answered(transport) == [1]
        world.asked.pop()[1]({"topics": []})
        await settle()
        assert answered(transport) == [2]

    in_loop(scenario)


def test_five_produce_requests_run_at_once_and_are_answered_in_order() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(b"".join(produce(number) for number in range(1, 8)) + metadata(8)))
        assert [number for number, _ in world.asked] == [1, 2, 3, 4, 5]
        for _, answer in (world.asked[1], world.asked[2]):
            answer({})
        assert answered(transport) == []
        world.asked[0][1]({})
        assert answered(transport) == [1, 2, 3]
        assert [number for number, _ in world.asked] == [1, 2, 3, 4, 5, 6, 7]  # Metadata waits for all of them
        for number in (4, 5, 6, 7):
            world.asked[number - 1][1]({})
        await settle()
        assert answered(transport) == [4, 5, 6, 7]
        assert len(world.asked) == 8

    in_loop(scenario)


def test_few_requests_of_a_large_piece_are_cut_at_once() -> None:
    """Cutting 13,000 requests that came in one piece stopped the event loop for 20 ms, for each connection."""

    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(metadata(1) * 1_000))
        await settle()
        assert len(connection._frames) < module.FRAMES_MAX
        assert not transport.is_reading_now
        for _ in range(1_000):
            world.asked.pop()[1]({"topics": []})
            await settle()
        assert answered(transport) == [1] * 1_000
        assert transport.is_reading_now
        assert world.connections.budget.used == 0

    in_loop(scenario)


def test_a_request_without_an_answer_lets_the_next_answer_pass() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(produce(1) + produce(2)))
        world.asked[1][1]({})
        world.asked[0][1](None)
        assert answered(transport) == [2]

    in_loop(scenario)


def test_frames_may_arrive_in_any_pieces() -> None:
    async def scenario() -> None:
        for size in (1, 3, 7, 50):
            world = World()
            _, connection = world.connect()
            data = bytes(produce(1) + produce(2, 100) + produce(3))
            for start in range(0, len(data), size):
                connection.data_received(data[start : start + size])
            assert [number for number, _ in world.asked] == [1, 2, 3]

    in_loop(scenario)


def test_thousands_of_requests_in_one_piece_are_handled() -> None:
    async def scenario() -> None:
        world = World()
        world.connections.fast[Api.PRODUCE] = lambda call, header, frame, answer: answer(  # type: ignore[index]
            (struct.pack(">ii", 4, header.correlation_id),)
        )
        transport, connection = world.connect()
        connection.data_received(bytes(b"".join(produce(number) for number in range(5_000))))
        assert answered(transport) == list(range(5_000))

    in_loop(scenario)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 7) + bytes(7),
        struct.pack(">i", 200 * MIB),
        struct.pack(">ihh", REQUEST_BYTES_MAX + 1, Api.METADATA, 1),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(finish(bytearray(4) + struct.pack(">hhi", 999, 0, 1))),
        bytes(finish(bytearray(4) + struct.pack(">hhih", Api.METADATA, 99, 1, -1))),
        bytes(request_frame(Api.METADATA, 12, body=b"\xff\xff\xff\xff\x0f")),
        bytes(request_frame(Api.JOIN_GROUP, 0, body=b"")),
    ],
    ids=["negative", "empty", "short", "long", "large", "http", "unknown type", "version", "malformed", "not served"],
)
def test_bytes_that_are_no_request_end_the_connection_at_once(data: bytes) -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(data)
        await settle()
        assert transport.state == "closed"
        assert not transport.written
        connection.data_received(bytes(metadata(1)))
        await settle()
        assert not world.asked
        transport.lose()
        assert world.connections.budget.used == 0
        assert not world.connections.open

    in_loop(scenario)


def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(request_frame(Api.API_VERSIONS, 99, 3, body=b"any bytes")))
        correlation_id, answer = read_answer(Api.API_VERSIONS, 0, transport.client_reads()[4:])
        assert (correlation_id, answer.error_code, transport.state) == (3, 35, "open")
        assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [(18, 0, 4)]

    in_loop(scenario)


def test_an_error_of_a_handler_becomes_the_answer_and_a_bug_ends_the_connection() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(request_frame(Api.FIND_COORDINATOR, 3, key="group", key_type=0)))
        await settle()
        _, answer = read_answer(Api.FIND_COORDINATOR, 3, transport.client_reads()[4:])
        assert (answer.error_code, answer.error_message) == (15, "there is none")
        connection.data_received(bytes(request_frame(Api.LIST_GROUPS, 0)))
        await settle()
        assert transport.state == "closed"

    in_loop(scenario)


def test_requests_are_cancelled_when_the_client_leaves() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        closed: list[str] = []
        connection.client.on_close(lambda: closed.append("closed"))
        connection.data_received(bytes(metadata(1)))
        await settle()
        transport.lose()
        await settle()
        assert [number for number, _ in world.asked] == [0, -1]
        assert closed == ["closed"]
        assert world.connections.budget.used == 0

    in_loop(scenario)


def test_a_client_that_does_not_read_is_not_read_and_is_closed_later() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        large = {"topics": [{"name": "x" * 30_000} for _ in range(40)]}
        connection.data_received(bytes(metadata(1) + metadata(2)))
        await settle()
        world.asked[0][1](large)
        await settle()
        assert not transport.is_reading_now
        assert len(world.asked) == 1  # the second request has not started
        for _ in range(module.STALLED_WRITE_S - 1):
            world.connections.sweep()
        del transport.written[:1000]  # the client reads a little: the time starts again
        for _ in range(module.STALLED_WRITE_S):
            world.connections.sweep()
        assert transport.state == "open"
        world.connections.sweep()
        assert transport.state == "aborted"

    in_loop(scenario)


def test_a_client_that_reads_again_goes_on() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(metadata(1) + metadata(2)))
        await settle()
        world.asked[0][1]({"topics": [{"name": "x" * 30_000} for _ in range(40)]})
        await settle()
        transport.client_reads()
        await settle()
        assert transport.is_reading_now
        assert len(world.asked) == 2

    in_loop(scenario)


def test_unread_answers_of_all_connections_are_counted() -> None:
    async def scenario() -> None:
        world = World()
        (first, one), (_, two) = world.connect("10.0.0.1"), world.connect("10.0.0.2")
        for connection in (one, two):
            connection.data_received(bytes(metadata(1)))
        await settle()
        for _, answer in world.asked:
            answer({"topics": [{"name": "x" * 30_000} for _ in range(40)]})
        await settle()
        answers = world.connections.answers
        assert answers.unread == 2 * len(first.written) > 2 * MIB
        first.client_reads()
        assert answers.unread > MIB
        two.connection_lost(None)
        assert answers.unread == 0

    in_loop(scenario)


def test_a_client_that_reads_too_little_is_closed_while_memory_for_answers_is_short() -> None:
    async def scenario() -> None:
        world = World()
        world.connections.answers.limit = MIB
        slow, connection = world.connect("10.0.0.1")
        connection.data_received(bytes(metadata(1)))
        await settle()
        world.asked.pop()[1]({"topics": [{"name": "x" * 30_000} for _ in range(80)]})
        await settle()
        for _ in range(module.STALLED_READ_S - 1):
            del slow.written[:1_000]  # too little in each second
            world.connections.sweep()
        assert slow.state == "open"
        world.connections.sweep()
        assert slow.state == "aborted"
        slow.lose()
        assert world.connections.answers.unread == 0

    in_loop(scenario)


def test_a_client_that_reads_fast_enough_stays_while_memory_for_answers_is_short() -> None:
    async def scenario() -> None:
        world = World()
        world.connections.answers.limit = MIB
        transport, connection = world.connect("10.0.0.1")
        connection.data_received(bytes(metadata(1)))
        await settle()
        world.asked.pop()[1]({"topics": [{"name": "x" * 30_000} for _ in range(80)]})
        await settle()
        for _ in range(2 * module.STALLED_READ_S):
            del transport.written[: module.ANSWER_BYTES_PER_S_MIN]
            world.connections.sweep()
        assert world.connections.answers.is_short
        assert transport.state == "open"

    in_loop(scenario)


def test_fetches_ask_for_less_the_more_answers_are_unread() -> None:
    answers = Answers(limit=64 * MIB)
    assert answers.fetch_bytes() == 64 * MIB
    answers.fetches = 99
    assert answers.fetch_bytes() == 64 * MIB // 100
    answers.unread = 64 * MIB + 1
    assert answers.fetch_bytes() == FETCH_BYTES_MIN


def test_the_end_of_a_client_is_seen_behind_bytes_that_are_not_read() -> None:
    """A request waits, so more requests stay in the socket: the end of the connection stays behind them. The request
    was cancelled only minutes later."""

    async def scenario() -> None:
        world = World()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(world.connections, "PLAINTEXT"), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, bytes(metadata(1) + metadata(2) * 8_000))
            await until_async(lambda: world.asked and not next(iter(world.connections.open))._is_reading)
            world.connections.sweep()
            assert world.connections.open

        def has_ended() -> bool:
            world.connections.sweep()
            return not world.connections.open

        await until_async(has_ended)
        await settle()
        assert [number for number, _ in world.asked] == [0, -1]
        server.close()

    in_loop(scenario)


def test_a_connection_with_many_waiting_bytes_is_not_read() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(metadata(1)))
        connection.data_received(bytes(produce(2, module.QUEUED_BYTES // 2)))
        await settle()
        assert transport.is_reading_now
        connection.data_received(bytes(produce(3, module.QUEUED_BYTES // 2)))
        assert not transport.is_reading_now
        world.asked.pop()[1]({})
        await settle()
        assert transport.is_reading_now
        assert [number for number, _ in world.asked] == [2, 3]

    in_loop(scenario)


def test_large_frames_wait_for_memory_and_one_of_them_always_goes_on() -> None:
    async def scenario() -> None:
        world = World(queued_bytes_max=MIB)
        frame = bytes(produce(1, MIB))
        half = len(frame) // 2
        pairs = [world.connect(f"10.0.0.{number}") for number in range(3)]
        for _, connection in pairs:
            connection.data_received(frame[:half])
        # The first has half of the memory, the second reached the limit and may go on, the third waits.
        assert [transport.is_reading_now for transport, _ in pairs] == [True, True, False]
        pairs[1][1].data_received(frame[half:])
        assert len(world.asked) == 1
        assert [transport.is_reading_now for transport, _ in pairs] == [True, True, True]  # the third goes ahead
        pairs[0][1].data_received(frame[half : half + 10])
        assert not pairs[0][0].is_reading_now
        world.asked.pop()[1]({})
        pairs[2][1].data_received(frame[half:])
        world.asked.pop()[1]({})
        assert pairs[0][0].is_reading_now
        pairs[0][1].data_received(frame[half + 10 :])
        world.asked.pop()[1]({})
        assert world.connections.budget.used == 0

    in_loop(scenario)


def test_small_requests_pass_while_memory_is_short() -> None:
    async def scenario() -> None:
        world = World(queued_bytes_max=1_000)
        _, busy = world.connect()
        busy.data_received(bytes(produce(1, 2_000)))
        transport, connection = world.connect("10.0.0.2")
        for number in range(2, 5):
            connection.data_received(bytes(produce(number)))
            world.asked.pop()[1]({})
        assert answered(transport) == [2, 3, 4]

    in_loop(scenario)


def test_a_stalled_frame_is_closed_while_memory_is_short() -> None:
    async def scenario() -> None:
        world = World(queued_bytes_max=MIB)
        slow, connection = world.connect()
        connection.data_received(bytes(produce(1, 2 * MIB))[: MIB + 10])
        other, waiting = world.connect("10.0.0.2")
        waiting.data_received(bytes(produce(2, 2 * MIB))[: 100 * 1024])
        assert not other.is_reading_now
        for _ in range(module.STALLED_READ_S):
            world.connections.sweep()
        assert slow.state == "aborted"
        slow.lose()
        assert other.is_reading_now
        assert other.state == "open"

    in_loop(scenario)


def test_a_trickling_frame_is_closed_while_memory_is_short() -> None:
    async def scenario() -> None:
        world = World(queued_bytes_max=MIB)
        slow, connection = world.connect()
        frame = bytes(produce(1, 2 * MIB))
        connection.data_received(frame[: MIB + 10])
        allowed = module.STALLED_READ_S + len(frame) // module.BYTES_PER_S_MIN
        for second in range(allowed):
            assert slow.state == "open"
            connection.data_received(frame[MIB + 10 + second : MIB + 11 + second])
            world.connections.sweep()
        assert slow.state == "aborted"

    in_loop(scenario)


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async def scenario() -> None:
        world = World(idle_ms=10_000)
        idle, _ = world.connect()
        busy, connection = world.connect()
        connection.data_received(bytes(metadata(1)))
        await settle()
        for _ in range(9):
            world.connections.sweep()
        assert idle.state == "open"
        world.connections.sweep()
        assert (idle.state, busy.state) == ("closed", "open")
        for _ in range(module.CLOSING_S):
            world.connections.sweep()
        assert idle.state == "aborted"  # the last answers had their time
        world.asked.pop()[1]({})
        await settle()
        for _ in range(10):
            world.connections.sweep()
        assert busy.state == "closed"

    in_loop(scenario)


def test_connections_are_limited_in_all_and_for_each_address() -> None:
    async def scenario() -> None:
        world = World(connections_max=3, addresses=AddressLimits(2))
        first, _ = world.connect("a")
        states = [world.connect(host)[0].state for host in ("a", "a", "b", "c")]
        assert states == ["open", "aborted", "open", "aborted"]
        first.lose()
        assert world.connect("a")[0].state == "open"

    in_loop(scenario)


def test_log_lines_about_clients_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        for _ in range(100):
            _, connection = world.connect()
            connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert len(logged(caplog)) == connections.LOG_LINES_PER_S
        world.connections.sweep()
        assert "90 more log lines" in logged(caplog)[-1].message

    in_loop(scenario)


def test_a_stopping_gateway_answers_what_it_has_started() -> None:
    async def scenario() -> None:
        world = World()
        idle, _ = world.connect()
        busy, connection = world.connect()
        connection.data_received(bytes(metadata(1) + metadata(2)))
        await settle()
        draining = asyncio.create_task(world.connections.drain(60))
        await settle()
        assert (idle.state, busy.state) == ("closed", "open")
        world.asked.pop()[1]({"topics": []})
        await settle()
        assert (answered(busy), busy.state, world.asked) == ([1], "closed", [])
        for transport in (idle, busy):
            transport.lose()
        await draining

    in_loop(scenario)


def test_a_stopping_gateway_waits_for_a_limited_time() -> None:
    async def scenario() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(metadata(1)))
        await settle()
        await world.connections.drain(0.001)
        assert transport.state == "open"

    in_loop(scenario)


def test_what_no_broker_takes_ends_some_seconds_after_its_client() -> None:
    """A client with acks=0 has sent its records and its end; the broker does not read."""

    async def test() -> None:
        world = World()
        transport, connection = world.connect()
        connection.data_received(bytes(metadata(1)))
        connection.client.sends_silently = True
        assert connection.eof_received(), "its requests go on"
        for _ in range(FINISH_S - 1):
            world.connections.sweep()
        assert transport.state == "open"
        world.connections.sweep()
        assert transport.state == "aborted"

    asyncio.run(test())


def test_a_piece_of_work_that_fails_does_not_keep_the_next_ones_from_starting() -> None:
    async def test() -> None:
        rounds = Rounds(1)
        started: list[int] = []

        def fails() -> None:
            raise ZeroDivisionError

        for each in (lambda: started.append(1), fails, lambda: started.append(3)):
            rounds.start(each)
        await until_async(lambda: started == [1, 3], "all have started")

    asyncio.run(test())


def test_a_long_message_after_the_end_of_the_gateway_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world = World()
        _, connection = world.connect()
        world.connections.close(at_once=False)
        with pytest.raises(asyncio.CancelledError):
            await connection._on_thread(len, b"")

    asyncio.run(test())
    assert logged(caplog) == []


def test_the_first_request_of_a_type_is_compiled_on_a_thread_and_the_next_ones_keep_their_order() -> None:
    async def scenario() -> None:
        world = World()
        world.connections.prepared.clear()
        transport, connection = world.connect()
        connection.data_received(bytes(produce(1) + produce(2)))
        assert not world.asked, "the event loop compiles nothing"
        await until_async(lambda: [number for number, _ in world.asked] == [1])
        assert world.connections.prepared == {Api.PRODUCE}
        await settle()
        assert len(world.asked) == 1, "the second one waits for the first one"
        world.asked.pop()[1]({"responses": []})
        await until_async(lambda: [number for number, _ in world.asked] == [2])
        connection.data_received(bytes(produce(3)))
        assert [number for number, _ in world.asked] == [2, 3], "at once"
        assert answered(transport) == [1]

    in_loop(scenario)
