"""A delivery that fails and whose outcome nobody reads is logged and counted; what the program reads is not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import AsyncProducer, Producer
from headrace.errors import InvalidRecordError
from tests.worlds.waiting import until, until_async

TABLE = pa.table({"value": [b"bad", b"bad"]})

#: Sends of records that the broker refuses: the number of records, and the call.
SENDS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "send": (1, lambda out: out.send("t", b"bad")),
    "send_many": (2, lambda out: out.send_many("t", [b"bad", b"bad"])),
    "send_arrow": (2, lambda out: out.send_arrow("t", TABLE)),
}

#: Ways to read the outcome of a blocking send.
READS: dict[str, Callable[[Any], object]] = {
    "result": lambda future: _raises(lambda: future.result(10)),
    "exception": lambda future: future.exception(10),
    "callback": lambda future: future.add_done_callback(lambda done: done.exception(0)),
}


def _raises(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidRecordError):
        call()


@pytest.fixture
def refusing(fake: Any) -> Any:
    fake.create("t")
    fake.on_produce = lambda broker, item: 87 if b"bad" in item.records else 0
    return fake


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of refused records. (Earlier tests of the process may drop futures of other failures.)"""
    messages = [record.getMessage() for record in caplog.records]
    return [text for text in messages if "not delivered" in text and "INVALID_RECORD" in text]


def unread(out: Any) -> float:
    return out.metrics()["record-error-unread-total"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", SENDS)
def test_failure_that_nobody_reads_is_logged_and_counted(refusing: Any, caplog: Any, way: str) -> None:
    count, send = SENDS[way]
    with Producer(bootstrap_servers=refusing.bootstrap_servers) as out:
        send(out)
        out.flush()
        until(lambda: unread(out) == count)
        until(lambda: told(caplog), "a line after the count")
        (text,) = told(caplog)
        assert text.startswith(f"t-0: {count} record")


@pytest.mark.parametrize("way", SENDS)
def test_future_that_is_kept_and_dropped_later_is_unread_too(refusing: Any, caplog: Any, way: str) -> None:
    count, send = SENDS[way]
    with Producer(bootstrap_servers=refusing.bootstrap_servers) as out:
        kept = send(out)
        until(kept.done)
        out.flush()
        assert unread(out) == 0
        del kept
        until(lambda: unread(out) == count)
    until(lambda: told(caplog))
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("way", SENDS)
@pytest.mark.parametrize("read", READS)
def test_failure_that_is_read_is_not_logged(refusing: Any, caplog: Any, way: str, read: str) -> None:
    with Producer(bootstrap_servers=refusing.bootstrap_servers) as out:
        future = SENDS[way][1](out)
        READS[read](future)
        until(future.done)
        READS[read](future)
        out.flush()
        del future
        gc.collect()
        SENDS["send"][1](out)  # the next failure is reported after this one would have been
        until(lambda: unread(out) > 0)
        assert unread(out) == 1
    until(lambda: told(caplog))
    assert len(told(caplog)) == 1


def test_failure_of_a_batch_that_a_sweep_has_seen_is_counted_too(refusing: Any) -> None:
    """The sweep for expired batches must keep none of them until it meets the next one."""
    with Producer(bootstrap_servers=refusing.bootstrap_servers) as out:
        out.send("t", b"good").result(10)
        refusing.hold_answers(True)
        out.send("t", b"bad")
        (link,), sweeps = out._core.sender.links.values(), []
        until(lambda: link.in_flight)
        link.moved = sweeps.append  # type: ignore[method-assign]  # the sweep's last call
        until(lambda: len(sweeps) > 1)
        refusing.hold_answers(False)
        until(lambda: unread(out) == 1, within_s=10)


def test_on_delivery_reads_the_outcome(refusing: Any, caplog: Any) -> None:
    heard: list[Any] = []
    with Producer(bootstrap_servers=refusing.bootstrap_servers) as out:
        out.send("t", b"bad", on_delivery=lambda metadata, error: heard.append(error))
        until(lambda: heard)
    assert isinstance(heard[0], InvalidRecordError)
    assert told(caplog) == []


def test_some_records_of_a_batch_are_read(refusing: Any) -> None:
    with Producer(bootstrap_servers=refusing.bootstrap_servers, linger_ms=200) as out:
        futures = [out.send("t", b"bad") for _ in range(5)]
        out.flush()
        for future in futures[:2]:
            assert isinstance(future.exception(10), InvalidRecordError)
        futures.clear()
        del future
        until(lambda: unread(out) == 3)


def test_acknowledged_records_are_no_failures(refusing: Any, caplog: Any) -> None:
    with Producer(bootstrap_servers=refusing.bootstrap_servers) as out:
        for _ in range(10):
            out.send("t", b"good")
        out.flush()
        gc.collect()
        assert unread(out) == 0
    assert told(caplog) == []


#: Ways to read the outcome of an asyncio send.
ASYNC_READS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "await": lambda future: future,
    "gather": lambda future: asyncio.gather(future),
    "wait_for": lambda future: asyncio.wait_for(future, 10),
    "shield": lambda future: asyncio.shield(future),
}


@pytest.mark.parametrize("way", SENDS)
def test_asyncio_failure_that_nobody_reads(refusing: Any, caplog: Any, way: str) -> None:
    count, send = SENDS[way]

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=refusing.bootstrap_servers) as out:
            await send(out)
            await out.flush()
            await until_async(lambda: unread(out) == count)

    asyncio.run(main())
    until(lambda: told(caplog))
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("read", ASYNC_READS)
def test_asyncio_failure_that_is_read(refusing: Any, caplog: Any, read: str) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=refusing.bootstrap_servers) as out:
            future = await out.send("t", b"bad")
            with pytest.raises(InvalidRecordError):
                await ASYNC_READS[read](future)
            del future
            await out.send("t", b"bad")
            await until_async(lambda: unread(out) > 0)
            assert unread(out) == 1

    asyncio.run(main())
    until(lambda: told(caplog))
    assert len(told(caplog)) == 1


def test_wait_that_was_cancelled_leaves_its_failure_unread(refusing: Any, caplog: Any) -> None:
    async def main() -> None:
        refusing.hold_answers(True)
        async with AsyncProducer(bootstrap_servers=refusing.bootstrap_servers) as out:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(await out.send("t", b"bad"), 0.01)
            refusing.hold_answers(False)
            await out.flush()
            await until_async(lambda: unread(out) == 1)

    asyncio.run(main())


def test_records_of_an_aborted_transaction_are_no_surprise(fake: Any, transactions: Any, caplog: Any) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:
        with contextlib.suppress(KeyError), out.transaction():
            fake.hold_answers(True)
            for _ in range(20):
                out.send("t", b"v")
            raise KeyError
        fake.hold_answers(False)
        gc.collect()
        assert unread(out) == 0
    assert "TRANSACTION_ABORTED" not in caplog.text
