"""The search for a context in a batch: which batches have one, and what hostile batches do."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_core.records import Compression, encode_batch
from headrace_core.tracing.batches import LOOKS_MAX, sampled_traceparent_in

SAMPLED = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = SAMPLED[:-1] + b"0"


def batch_of(*headers: list[tuple[str, bytes | None]], **more: Any) -> bytes:
    return bytes(encode_batch([(1, b"k", b"v", each) for each in headers], **more))


def test_the_first_sampled_context_of_a_batch_is_found() -> None:
    other = SAMPLED.replace(b"4bf9", b"1111")
    batch = batch_of(
        [], [("traceparent", UNSAMPLED)], [("a", None), ("traceparent", SAMPLED)], [("traceparent", other)]
    )
    assert sampled_traceparent_in(batch) == SAMPLED.decode()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", UNSAMPLED)],
        [("traceparent", None)],
        [("traceparent", b"x" * 55)],
        [("traceparent", SAMPLED[:-1])],
        [("xtraceparent", SAMPLED)],
    ],
)
def test_a_batch_without_a_sampled_context_has_none(headers: list[tuple[str, bytes | None]]) -> None:
    assert sampled_traceparent_in(batch_of(headers)) is None


def test_a_compressed_batch_has_none() -> None:
    batch = batch_of([("traceparent", SAMPLED)], compression=Compression.GZIP)
    assert sampled_traceparent_in(batch) is None


def test_damaged_batches_have_none_and_many_headers_are_not_all_looked_at() -> None:
    batch = batch_of([("traceparent", SAMPLED)])
    for end in range(len(batch)):
        sampled_traceparent_in(batch[:end])
    assert sampled_traceparent_in(b"") is None
    many = batch_of(*[[("traceparent", UNSAMPLED)]] * LOOKS_MAX, [("traceparent", SAMPLED)])
    assert sampled_traceparent_in(many) is None
