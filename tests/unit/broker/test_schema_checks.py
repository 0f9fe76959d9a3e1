"""Schema checks of appends: what is accepted, refused and asked of the schema registry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace_broker.partition.schemas import KnownSchemas, Need, SchemaCheck, Subjects, judge, subjects_of
from headrace_broker.schema_registry import (
    RETRY_S,
    RegistryAddress,
    RegistryUnavailableError,
    SchemaRegistry,
    ask_subjects,
    subjects_in,
)
from headrace_core.clock import SystemClock
from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidRecordError,
    ServerBusyError,
    ServerShuttingDownError,
)
from headrace_core.log.appending import validate
from headrace_core.log.config import LogConfig, SubjectStrategy
from headrace_core.records import encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.types import TopicPartition
from tests.worlds.registries import fake_registry
from tests.worlds.waiting import until_async

ORDERS = TopicPartition("orders", 3)
OF_VALUES = {"value.schema.validation": "true"}


def framed(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"rest"


def check_of(
    *values: bytes | None, keys: dict[str, str] = OF_VALUES, key: bytes | None = None, batches: int = 1
) -> SchemaCheck:
    config = LogConfig.from_topic(keys)
    check = SchemaCheck.of(ORDERS.topic, config)
    assert check is not None
    records = b"".join(encode_batch([(1, key, value, None) for value in values]) for _ in range(batches))
    validate(records, config, 10, schemas=check.ids)
    return check


def known(**subjects: list[str] | None) -> KnownSchemas:
    """``id_7=["orders-value"]``: what the registry has answered for values of orders."""
    found = KnownSchemas(100, 1_000)
    for name, answer in subjects.items():
        found.answered(value_need(int(name.removeprefix("id_"))), answer, 0)
    return found


def value_need(schema_id: int) -> Need:
    return Need(schema_id, Subjects("orders-value"))


def faults_of(check: SchemaCheck, answers: KnownSchemas) -> tuple[tuple[int, str], ...]:
    with pytest.raises(InvalidRecordError) as raised:
        judge(check, answers, ORDERS, 0)
    return raised.value.faults


# -- the pure part ----------------------------------------------------------------------------------------------------


def test_a_topic_without_validation_has_no_check():
    assert SchemaCheck.of("orders", LogConfig.from_topic({})) is None
    assert SchemaCheck.of("orders", LogConfig.from_topic({"value.subject.name.strategy": "RecordNameStrategy"})) is None


def test_registered_ids_and_tombstones_pass_and_unknown_ids_are_asked_once():
    assert judge(check_of(framed(7), None, framed(7)), known(id_7=["other", "orders-value"]), ORDERS, 0) == []
    assert judge(check_of(None, None), known(), ORDERS, 0) == []
    assert judge(check_of(framed(9), framed(8), framed(9)), known(), ORDERS, 0) == [value_need(9), value_need(8)]


def test_the_refused_records_are_named_with_their_reasons():
    answers = known(id_7=["orders-value"], id_8=None, id_9=["payments-value"])
    check = check_of(framed(7), b"{}", framed(9), framed(8), framed(9), framed(5))
    assert faults_of(check, answers) == (
        (1, "the value does not begin with a magic byte 0 and a schema id (Confluent's wire format)"),
        (2, 'the value has schema id 9, which is not registered under the subject "orders-value"'),
        (3, "the value has schema id 8, which the schema registry does not have"),
        (4, 'the value has schema id 9, which is not registered under the subject "orders-value"'),
    )
    with pytest.raises(InvalidRecordError, match="orders-3: record 1 of a batch: the value does not begin"):
        judge(check, answers, ORDERS, 0)


def test_at_most_a_hundred_records_are_named():
    assert [index for index, _ in faults_of(check_of(*[b"x"] * 150, *[framed(8)] * 150), known(id_8=None))] == list(
        range(100)
    )


def test_keys_are_checked_under_their_own_subject():
    keys = {"key.schema.validation": "true"}
    check = check_of(b"anything", keys=keys, key=framed(3))
    assert judge(check, known(id_3=["orders-value"]), ORDERS, 0) == [Need(3, Subjects("orders-key"))]
    assert judge(check_of(b"anything", keys=keys), known(), ORDERS, 0) == []
    both = check_of(framed(1), keys=keys | OF_VALUES, key=b"k")
    assert faults_of(both, known()) == (
        (0, "the key does not begin with a magic byte 0 and a schema id (Confluent's wire format)"),
    )


@pytest.mark.parametrize(
    ("strategy", "accepted", "refused"),
    [
        (SubjectStrategy.TOPIC, ["orders-value"], ["orders-key", "orders", "x-orders-value", "orders-value-2"]),
        (SubjectStrategy.TOPIC_RECORD, ["orders-com.acme.Order"], ["com.acme.Order", "orders"]),
        (SubjectStrategy.RECORD, ["com.acme.Order", "anything"], []),
    ],
)
def test_each_strategy_has_its_subjects(strategy: SubjectStrategy, accepted: list[str], refused: list[str]):
    subjects = subjects_of(strategy, "orders", "value")
    assert all(map(subjects.has, accepted))
    assert not any(map(subjects.has, refused))


def test_that_an_id_is_missing_is_forgotten_and_that_it_is_there_is_not():
    answers = known(id_7=["orders-value"], id_8=None)
    assert answers.fault(value_need(8), 1_000) == "has schema id 8, which the schema registry does not have"
    assert answers.fault(value_need(8), 1_001) is None
    assert answers.fault(value_need(7), 10**12) == ""
    answers.answered(value_need(8), ["orders-value"], 1_001)
    assert answers.fault(value_need(8), 1_002) == ""


def test_the_cache_is_bounded_and_missing_ids_drive_out_no_known_ones():
    answers = KnownSchemas(10, 1_000)
    for number in range(10):
        answers.answered(value_need(number), ["orders-value"], 0)
    for number in range(1_000, 2_000):
        answers.answered(value_need(number), None, 0)
    assert len(answers) == 20
    assert answers.fault(value_need(0), 0) == ""  # used again, so it is not the oldest now
    answers.answered(value_need(10), ["orders-value"], 0)
    assert answers.fault(value_need(0), 0) == ""
    assert answers.fault(value_need(1), 0) is None
    answers.resize(3, 1_000)
    assert len(answers) == 6


# -- questions to the registry ----------------------------------------------------------------------------------------


class Registry:
    """``answers``: subjects by id, None, or an exception. Questions wait while ``gate`` is not set."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.busiest = self.busy = 0

    async def ask(self, address: RegistryAddress, schema_id: int) -> Any:
        self.asked.append(schema_id)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await self.gate.wait()
        finally:
            self.busy -= 1
        answer = self.answers.get(schema_id)
        if isinstance(answer, Exception):
            raise answer
        return answer


def of(registry: Registry, *urls: str) -> SchemaRegistry:
    return SchemaRegistry(SystemClock(), lambda: urls or ("http://one:1",), ask=registry.ask)


async def outcome(schemas: SchemaRegistry, check: SchemaCheck) -> str:
    """What becomes of an append: "accepted", or the name of its error."""
    while True:
        answered = asyncio.Event()
        try:
            if schemas.accepts(check, ORDERS, answered.set):
                return "accepted"
        except HeadraceError as error:
            return type(error).__name__
        await asyncio.wait_for(answered.wait(), 30)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_an_unknown_id_is_asked_once_by_all_that_wait_for_it():
    async def work() -> None:
        registry = Registry({7: ["orders-value"], 8: None})
        registry.gate.clear()
        schemas = of(registry)
        waiting = [asyncio.create_task(outcome(schemas, check_of(framed(n)))) for n in (7, 7, 8)]
        await asyncio.sleep(0)
        registry.gate.set()
        assert await asyncio.gather(*waiting) == ["accepted", "accepted", "InvalidRecordError"]
        assert await outcome(schemas, check_of(framed(7))) == "accepted"
        assert sorted(registry.asked) == [7, 8]

    run(work)


def test_an_answer_that_is_too_old_for_others_counts_for_the_append_that_waited_for_it():
    async def work() -> None:
        registry = Registry({7: ["orders-value"], 8: None})
        schemas = SchemaRegistry(SystemClock(), lambda: ("http://one:1",), missing_ttl_s=0, ask=registry.ask)
        for _ in range(2):
            assert await outcome(schemas, check_of(framed(7), framed(8))) == "InvalidRecordError"
        assert registry.asked == [7, 8, 8]

    run(work)


def test_an_append_with_many_unknown_ids_asks_for_a_few_at_a_time():
    async def work() -> None:
        registry = Registry({n: ["orders-value"] for n in range(100)})
        assert await outcome(of(registry), check_of(*[framed(n) for n in range(100)])) == "accepted"
        assert len(registry.asked) == 100
        assert registry.busiest <= 8
        hostile = Registry({})
        assert await outcome(of(hostile), check_of(*[framed(n) for n in range(900)])) == "InvalidRecordError"
        assert len(hostile.asked) <= 32

    run(work)


def test_known_ids_go_on_and_unknown_ids_get_a_retriable_error_at_once_while_the_registry_is_down():
    async def work() -> None:
        registry, clock = Registry({7: ["orders-value"]}), ManualClock()
        schemas = SchemaRegistry(clock, lambda: ("http://one:1",), ask=registry.ask)
        assert await outcome(schemas, check_of(framed(7))) == "accepted"
        registry.answers[8] = RegistryUnavailableError("connection refused")
        assert await outcome(schemas, check_of(framed(8))) == "ServerBusyError"
        registry.gate.clear()  # from now on questions wait, and appends must not
        for _ in range(3):
            with pytest.raises(ServerBusyError, match=r"orders-3: cannot check schema id 8.*connection refused"):
                schemas.accepts(check_of(framed(8)), ORDERS, lambda: None)
            assert schemas.accepts(check_of(framed(7)), ORDERS, lambda: None)
        registry.answers[8] = ["orders-value"]
        registry.gate.set()

        def is_asked_again() -> bool:
            with contextlib.suppress(ServerBusyError):
                return schemas.accepts(check_of(framed(8)), ORDERS, lambda: None)
            return False

        clock.advance(RETRY_S * 1_000)
        await until_async(is_asked_again)
        assert await outcome(schemas, check_of(framed(9))) == "InvalidRecordError"  # the registry answers: it is asked

    run(work)


def test_an_append_waits_a_bounded_time_for_a_registry_that_hangs(monkeypatch):
    monkeypatch.setattr("headrace_broker.schema_registry.REQUEST_S", 30.0)
    monkeypatch.setattr("headrace_broker.schema_registry.WAIT_S", 0.05)

    async def work() -> None:
        registry = Registry({7: ["orders-value"]})
        registry.gate.clear()
        schemas = of(registry)
        assert await outcome(schemas, check_of(framed(7))) == "ServerBusyError"
        await schemas.close()

    run(work)


def test_the_next_address_is_asked_and_the_one_that_answered_comes_first(monkeypatch):
    monkeypatch.setattr("headrace_broker.schema_registry.REQUEST_S", 0.05)
    asked: list[str] = []

    async def ask(address: RegistryAddress, schema_id: int) -> list[str]:
        asked.append(address.url)
        if address.url == "http://hangs:1":
            await asyncio.sleep(60)
        if address.url == "http://down:1":
            raise RegistryUnavailableError("connection refused")
        return ["orders-value"]

    async def work() -> None:
        urls = ("http://hangs:1", "http://down:1", "http://up:1")
        schemas = SchemaRegistry(SystemClock(), lambda: urls, ask=ask)
        assert await outcome(schemas, check_of(framed(1))) == "accepted"
        assert await outcome(schemas, check_of(framed(2))) == "accepted"
        assert asked == [*urls, "http://up:1"]

    run(work)


def test_a_broker_without_a_registry_says_which_key_is_missing():
    async def work() -> None:
        schemas = SchemaRegistry(SystemClock())
        with pytest.raises(InvalidConfigError, match=r"confluent\.schema\.registry\.url"):
            schemas.accepts(check_of(framed(7)), ORDERS, lambda: None)
        assert schemas.accepts(check_of(None), ORDERS, lambda: None)

    run(work)


def test_a_broker_that_stops_answers_the_appends_that_wait():
    async def work() -> None:
        registry = Registry({7: ["orders-value"]})
        registry.gate.clear()
        schemas = of(registry)
        waiting = asyncio.create_task(outcome(schemas, check_of(framed(7))))
        await asyncio.sleep(0)
        await schemas.close()
        assert await waiting == ServerShuttingDownError.__name__

    run(work)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def test_a_registry_is_asked_over_http_with_the_password():
    async def work() -> None:
        with fake_registry() as registry:
            schema_id = registry.add_avro("orders-value", "string")
            registry.add_avro("payments-value", "string")
            address = RegistryAddress(f"{registry.url}/", "Basic dTpw")
            assert await ask_subjects(address, schema_id) == ["orders-value", "payments-value"]
            assert await ask_subjects(address, 99) is None
            assert registry.requests[0] == ("GET", f"/schemas/ids/{schema_id}/subjects")
            assert registry.headers[0]["Authorization"] == "Basic dTpw"
        with pytest.raises(RegistryUnavailableError, match="Connect"):
            await ask_subjects(address, 1)

    run(work)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "not HTTP with JSON"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}', "status 200"),
        (b"HTTP/1.1 200 OK\r\n\r\n[1, 2]", "status 200"),
        (b'HTTP/1.1 404 Not Found\r\n\r\n{"error_code": 404, "message": "no such page"}', "status 404: no such page"),
        (b'HTTP/1.1 401 Unauthorized\r\n\r\n{"error_code": 401}', "status 401"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[]", "not HTTP"),
        (b"\x16\x03\x01\x02\x00" * 9, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000, "not HTTP with JSON"),
    ],
)
def test_an_answer_that_no_registry_gives_is_no_answer(raw: bytes, reason: str):
    with pytest.raises(RegistryUnavailableError, match=reason):
        subjects_in(raw)


def test_answers_in_chunks_are_read():
    assert subjects_in(
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n["a",\r\n4\r\n"b"]\r\n0\r\n\r\n'
    ) == [
        "a",
        "b",
    ]


def test_an_append_with_more_ids_than_the_cache_is_accepted() -> None:
    async def work() -> None:
        asked = 0

        async def ask(address: RegistryAddress, schema_id: int) -> list[str] | None:
            nonlocal asked
            asked += 1
            return ["orders-value"]

        registry = SchemaRegistry(SystemClock(), lambda: ["http://r"], cache_size_max=1, ask=ask)
        check = check_of(*(framed(schema_id) for schema_id in range(1, 6)))
        answered = asyncio.Event()
        for _ in range(8):
            answered.clear()
            if registry.accepts(check, ORDERS, answered.set):
                break
            await asyncio.wait_for(answered.wait(), 5)
        else:
            raise AssertionError("the append still waits")
        assert asked <= 15
        await registry.close()

    run(work)


def test_an_unexpected_error_of_a_question_is_a_registry_that_does_not_answer() -> None:
    async def work() -> None:
        asked = 0

        async def ask(address: RegistryAddress, schema_id: int) -> list[str] | None:
            nonlocal asked
            asked += 1
            raise ZeroDivisionError("a bug")

        registry = SchemaRegistry(SystemClock(), lambda: ["http://r"], ask=ask)
        check, answered = check_of(framed(7)), asyncio.Event()
        assert not registry.accepts(check, ORDERS, answered.set)
        await asyncio.wait_for(answered.wait(), 5)
        with pytest.raises(ServerBusyError, match="a bug"):
            registry.accepts(check, ORDERS, answered.set)
        assert asked == 1
        await registry.close()

    run(work)


def test_a_host_that_is_no_host_is_a_registry_that_does_not_answer() -> None:
    async def work() -> None:
        with pytest.raises(RegistryUnavailableError):
            await ask_subjects(RegistryAddress("http://a..b:8081", None), 7)

    run(work)
