"""Callbacks run on the I/O thread of all clients: blocking calls are refused on that thread, exceptions are logged."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from headrace.errors import BufferTimeoutError, IllegalStateError, InvalidArgumentError

TP = TopicPartition("t", 0)


class Scene:
    """Clients of one cluster. A callback of one producer runs ``call``."""

    def __init__(self, cluster: Any) -> None:
        where = {"bootstrap_servers": cluster.bootstrap_servers}
        self.cluster = cluster
        self.out = Producer(**where, retry_backoff_ms=5)
        self.other = Producer(**where, buffer_memory=2_000, batch_size=500, max_block_ms=60_000)
        self.consumer = Consumer(**where, group_id="g", default_api_timeout_ms=2_000)
        self.consumer.assign([TP])
        self.fresh = Consumer(**where)
        self.fresh.assign([TP])
        self.admin = Admin(**where)
        self.other.partitions_for("t")

    def end(self) -> None:
        for client in (self.out, self.other, self.consumer, self.fresh, self.admin):
            client.close()

    def fill(self) -> None:
        """``other`` has no room for another record."""
        self.cluster.hold_answers(True)
        while self.other._core.accumulator.buffered_bytes < 2_000:
            self.other.send("t", b"x" * 400)

    def in_callback(self, call: Callable[[Scene], object]) -> BaseException | None:
        """Return the exception that ``call`` raises in a delivery callback."""
        caught: concurrent.futures.Future[BaseException | None] = concurrent.futures.Future()

        def tries(metadata: Any, error: Any) -> None:
            try:
                call(self)
            except BaseException as failure:  # noqa: BLE001
                caught.set_result(failure)
            else:
                caught.set_result(None)

        self.out.send("t", b"v", on_delivery=tries)
        return caught.result(60)


@pytest.fixture
def scene(fake: Any) -> Any:
    made = Scene(fake)
    yield made
    fake.hold_answers(False)
    made.end()


CALLS: dict[str, Callable[[Scene], object]] = {
    "flush": lambda s: s.other.flush(),
    "close": lambda s: s.other.close(),
    "close of the same": lambda s: s.out.close(),
    "partitions_for": lambda s: s.other.partitions_for("t"),
    "send to an unknown topic": lambda s: s.other.send("elsewhere", b"v"),
    "send_many to an unknown topic": lambda s: s.other.send_many("elsewhere", [b"v"]),
    "poll": lambda s: s.fresh.poll(60),
    "iteration": lambda s: next(iter(s.fresh)),
    "fetch_arrow": lambda s: s.fresh.fetch_arrow(60),
    "position": lambda s: s.fresh.position(TP),
    "commit": lambda s: s.consumer.commit({TP: 1}),
    "committed": lambda s: s.consumer.committed([TP]),
    "end_offsets": lambda s: s.fresh.end_offsets([TP]),
    "unsubscribe": lambda s: s.consumer.unsubscribe(),
    "Consumer.close": lambda s: s.consumer.close(),
    "list_topics": lambda s: s.admin.list_topics(),
    "Admin.close": lambda s: s.admin.close(),
    "result of a commit": lambda s: s.consumer.commit_async({TP: 1}).result(),
    "exception of a commit": lambda s: s.consumer.commit_async({TP: 1}).exception(),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_that_waits_in_a_delivery_callback_is_refused_at_once(scene: Scene, name: str) -> None:
    error = scene.in_callback(CALLS[name])
    assert isinstance(error, IllegalStateError), error
    assert "in the callback Scene.in_callback.<locals>.tries" in error.message
    assert "to another thread" in error.message
    assert scene.out.send("t", b"w").result(60).offset > 0  # nothing hangs, nothing was closed
    assert scene.admin.describe_cluster().cluster_id == "fake"
    assert scene.fresh.poll(0) is not None


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda s: s.other.flush(), "flush() cannot wait"),
        (lambda s: s.admin.list_topics(), "list_topics() cannot wait"),
        (lambda s: s.fresh.poll(60), "poll() cannot wait"),
        (lambda s: s.other.send("elsewhere", b"v"), "send() cannot wait"),
        (lambda s: s.fresh.position(TP), "position() cannot wait"),
    ],
)
def test_refusal_names_the_call(scene: Scene, call: Any, named: str) -> None:
    assert named in str(scene.in_callback(call))


def test_waiting_for_another_record_in_a_callback_is_refused_and_asking_is_not(scene: Scene) -> None:
    scene.cluster.on_produce = lambda broker, item: 89 if b"stuck" in item.records else 0
    one, many = scene.other.send("t", b"stuck"), scene.other.send_many("t", [b"stuck"] * 3)
    for call in (one.result, one.exception, many.result, lambda: one.result(30)):
        error = scene.in_callback(lambda s, call=call: call())  # type: ignore[misc]
        assert isinstance(error, IllegalStateError), error
        assert "result() cannot wait" in error.message
    error = scene.in_callback(lambda s: one.result(0))
    assert isinstance(error, TimeoutError)
    scene.cluster.on_produce = lambda broker, item: 0
    assert one.result(60).offset >= 0


@pytest.mark.parametrize("send", ["send", "send_many"])
def test_send_into_a_full_buffer_in_a_callback_fails_at_once_whatever_max_block_is(scene: Scene, send: str) -> None:
    def fills_and_sends(s: Scene) -> None:
        s.fill()
        s.other.send("t", b"one more") if send == "send" else s.other.send_many("t", [b"one more"])

    error = scene.in_callback(fills_and_sends)
    assert isinstance(error, BufferTimeoutError), error
    assert "is full" in error.message
    assert "max.block.ms does not apply" in error.message
    scene.cluster.hold_answers(False)
    scene.other.flush(60)


def test_commit_callback_is_a_callback_like_any_other(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caught: concurrent.futures.Future[BaseException] = concurrent.futures.Future()

    def waits(offsets: Any, error: Any) -> None:
        try:
            scene.consumer.commit()
        except BaseException as failure:
            caught.set_result(failure)
            raise

    with caplog.at_level(logging.ERROR, "headrace"):
        scene.consumer.commit_async({TP: 1}, waits)
        assert isinstance(caught.result(60), IllegalStateError)
        assert scene.out.send("t", b"v").result(60).offset == 0  # the I/O thread goes on
    assert any("waits raised an exception" in record.getMessage() for record in caplog.records)


def test_callback_that_raises_is_logged_and_not_raised_where_it_was_added(
    fake: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(future: Any) -> None:
        raise RuntimeError("a user's mistake")

    with Producer(bootstrap_servers=fake.bootstrap_servers) as out, caplog.at_level(logging.ERROR, "headrace"):
        future, many = out.send("t", b"v"), out.send_many("t", [b"v"])
        future.result(60), many.result(60)
        for done in (future, many):
            caplog.clear()
            done.add_done_callback(fails)
            assert "fails raised an exception" in caplog.text
            assert "a user's mistake" in caplog.text


@pytest.mark.parametrize("wrong", [5, "print", object()])
def test_callback_that_cannot_be_called_is_refused_when_it_is_given(fake: Any, wrong: Any) -> None:
    async def never_awaited(*arguments: Any) -> None: ...

    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        for each in (wrong, never_awaited):
            with pytest.raises(InvalidArgumentError, match="on_delivery="):
                out.send("t", b"v", on_delivery=each)
            with pytest.raises(InvalidArgumentError, match="callback="):
                out.send("t", b"v").add_done_callback(each)
            with pytest.raises(InvalidArgumentError, match="callback="):
                out.send_many("t", [b"v"]).add_done_callback(each)
    with Consumer(bootstrap_servers=fake.bootstrap_servers, group_id="g") as consumer:
        for each in (wrong, never_awaited):
            with pytest.raises(InvalidArgumentError, match="callback="):
                consumer.commit_async({TP: 1}, each)
            for name in ("on_assigned", "on_revoked", "on_lost"):
                with pytest.raises(InvalidArgumentError, match=f"{name}="):
                    consumer.subscribe(["t"], **{name: each})
        assert consumer.subscription() == frozenset()

    async def in_asyncio() -> None:
        async with AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, group_id="g") as consumer:
            with pytest.raises(InvalidArgumentError, match="callback="):
                consumer.commit_async({TP: 1}, never_awaited)
            with pytest.raises(InvalidArgumentError, match="on_lost="):
                consumer.subscribe(["t"], on_lost=wrong)

    asyncio.run(in_asyncio())
