"""The writer's commands: batches on a draft, and transactions whose outcome the reader learns."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import RecordTooLargeError
from headrace_registry.schemas import Schema, SchemaType
from headrace_registry.state import Deciding, Decision, Image, RegistryError, Submission
from headrace_registry.writes import BATCH_RECORDS_MAX, Batch, NotWriterError, Writes
from tests.worlds.registries import avro

deciding = Deciding()


def registering(number: int, subject: str = "") -> Callable[[Image], Decision[int]]:
    submitted = Submission(subject or f"subject-{number}", Schema(SchemaType.AVRO, avro(number)))
    return lambda image: deciding.register(image, submitted, normalize=False)


def refusing(image: Image) -> Decision[int]:
    raise RegistryError(409, 409, f"there are {image.schema_count} schemas")


def in_a_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(scenario())

    run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
    return run


def append(image: Image, batch: Batch, first: int) -> int:
    """The reader's part: apply the batch's records from offset ``first`` on; returns the last offset."""
    for offset, (key, value) in enumerate(batch.records, first):
        image.apply(key, value, offset)
    return first + len(batch.records) - 1


def taken(writes: Writes, image: Image, next_offset: int = 0) -> Batch:
    batch = writes.take(image, next_offset)
    assert batch is not None
    return batch


@in_a_loop
async def test_a_batch_is_decided_on_a_draft_and_answered_when_its_last_record_is_applied() -> None:
    writes, image = Writes(10_000), Image()
    answers = [writes.submit(registering(number)) for number in (1, 2, 1)]
    batch = taken(writes, image)
    assert image.schema_count == 0, "the image has only what is committed"
    assert not any(each.done() for each in answers)
    last = append(image, batch, 0)
    flight = writes.sent(batch, last)
    for offset in range(last):
        writes.applied(offset)
    assert not any(each.done() for each in answers), "the transaction's last record is not applied yet"
    writes.applied(last)
    assert [each.result() for each in answers] == [1, 2, 1]
    assert flight.is_committed.result()


@in_a_loop
async def test_a_write_without_a_record_is_answered_at_once_and_other_batches_do_not_wait_for_it() -> None:
    writes, image = Writes(10_000), Image()
    first = writes.submit(registering(1))
    append(image, taken(writes, image), 0)
    writes.applied(0)
    again = writes.submit(registering(1))
    assert writes.take(image, 1) is None
    assert again.result() == 1
    assert not first.done(), "its batch was never sent"


@in_a_loop
async def test_a_refusal_that_follows_from_an_uncommitted_record_waits_for_the_commit() -> None:
    writes, image = Writes(10_000), Image()
    writes.submit(registering(1))
    refused = writes.submit(refusing)
    batch = taken(writes, image)
    assert not refused.done()
    writes.not_sent(batch)  # the transaction failed: both are decided again
    batch = taken(writes, image)
    last = append(image, batch, 0)
    writes.sent(batch, last)
    writes.applied(last)
    with pytest.raises(RegistryError, match="there are 1 schemas"):
        refused.result()


@in_a_loop
async def test_commands_of_an_aborted_transaction_are_decided_again_before_all_others() -> None:
    writes, image = Writes(10_000), Image()
    first = writes.submit(registering(1, "a"))
    batch = taken(writes, image)
    writes.sent(batch, 0)
    second = writes.submit(registering(2, "a2"))
    writes.applied(1)  # a later record: the transaction at offset 0 was aborted
    assert not first.done()
    again = taken(writes, image, 2)
    last = append(image, again, 2)
    writes.sent(again, last)
    writes.applied(last)
    assert (first.result(), second.result()) == (1, 2)


@in_a_loop
async def test_a_replica_that_is_no_writer_refuses_what_waits_but_keeps_what_may_be_committed() -> None:
    writes, image = Writes(10_000), Image()
    committed, aborted = writes.submit(registering(1)), writes.submit(registering(2))
    both = taken(writes, image)
    one, other = Batch(both.commands[:1], both.records[:1]), Batch(both.commands[1:], both.records[1:])
    writes.sent(one, 0)
    writes.sent(other, 2)
    waiting = writes.submit(registering(3))
    writes.refuse(NotWriterError("http://other"))
    with pytest.raises(NotWriterError, match="http://other"):
        waiting.result()
    assert not committed.done()
    writes.applied(0)
    assert committed.result() == 1
    assert not aborted.done()
    writes.applied(3)
    with pytest.raises(NotWriterError):
        aborted.result()


@in_a_loop
async def test_a_command_with_a_bug_or_a_large_record_fails_alone() -> None:
    def broken(image: Image) -> Decision[int]:
        raise ZeroDivisionError("a bug")

    writes, image = Writes(400), Image()
    bad = writes.submit(broken)
    large = writes.submit(registering(1, "a" * 400))
    good = writes.submit(registering(2))
    batch = taken(writes, image)
    last = append(image, batch, 0)
    writes.sent(batch, last)
    writes.applied(last)
    assert good.result() == 1, "the refused schemas have taken no id"
    with pytest.raises(ZeroDivisionError):
        bad.result()
    with pytest.raises(RecordTooLargeError, match=r"has \d+ bytes, and the topic accepts at most 400"):
        large.result()


@in_a_loop
async def test_a_batch_has_a_limit_and_leaves_the_rest_in_order() -> None:
    writes, image = Writes(10_000), Image()
    answers = [writes.submit(registering(number)) for number in range(BATCH_RECORDS_MAX + 10)]
    sizes, offset = [], 0
    while (batch := writes.take(image, offset)) is not None:
        sizes.append(len(batch.records))
        last = append(image, batch, offset)
        writes.sent(batch, last)
        writes.applied(last)
        offset = last + 1
    assert sizes[0] in (BATCH_RECORDS_MAX, BATCH_RECORDS_MAX + 1)
    assert len(sizes) == 2
    assert [each.result() for each in answers] == list(range(1, BATCH_RECORDS_MAX + 11))


@in_a_loop
async def test_a_command_whose_caller_is_gone_is_not_decided() -> None:
    writes, image = Writes(10_000), Image()
    gone = writes.submit(registering(1))
    gone.cancel()
    assert writes.take(image, 0) is None


@in_a_loop
async def test_commands_whose_callers_are_gone_take_no_memory_while_no_batch_is_taken() -> None:
    writes, image = Writes(10_000), Image()

    def submitted() -> weakref.ref[Callable[[Image], Decision[int]]]:
        decide = registering(1)
        writes.submit(decide).cancel()
        return weakref.ref(decide)

    waiting = submitted()
    writes.submit(registering(2))
    batch = taken(writes, image)
    batch.commands[0].outcome.cancel()
    in_batch = weakref.ref(batch.commands[0].decide)
    writes.not_sent(batch)
    del batch
    await asyncio.sleep(0)
    gc.collect()
    assert (waiting(), in_batch()) == (None, None)
