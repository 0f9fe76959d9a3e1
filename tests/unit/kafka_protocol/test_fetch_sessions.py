"""Fetch sessions (KIP-227): which partitions a request fetches, and which requests are refused."""

from __future__ import annotations

import pytest

from headrace_kafka.fetch_path import _joined
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import request_body
from headrace_kafka.wire.sessions import (
    FINAL,
    FULL,
    INVALID_SESSION_EPOCH,
    NO_SESSION,
    SESSION_ID_NOT_FOUND,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    SessionError,
    Wanted,
)

A, B = ("orders", bytes(16), 0), ("orders", bytes(16), 1)


def at(offset: int) -> Wanted:
    return Wanted(offset, 1024, -1, -1)


def begun(*keys: tuple[str, bytes, int]) -> FetchSession:
    session = FetchSession()
    assert session.apply(NO_SESSION, FULL, [(key, at(0)) for key in keys], [], 7)
    return session


def test_a_full_request_begins_a_session_and_names_all() -> None:
    session = begun(A, B)
    assert session.session_id == 7
    assert list(session.wanted) == [A, B]


def test_an_incremental_request_names_only_changes() -> None:
    session = begun(A, B)
    assert not session.apply(7, 1, [(A, at(5))], [], 8)
    assert session.wanted == {A: at(5), B: at(0)}
    assert not session.apply(7, 2, [], [A], 8)
    assert session.wanted == {B: at(0)}
    assert session.session_id == 7


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [(8, 1, SESSION_ID_NOT_FOUND), (7, 2, INVALID_SESSION_EPOCH), (7, 5, INVALID_SESSION_EPOCH)],
)  # fmt: skip
def test_a_request_of_another_session_or_epoch_is_refused_and_changes_nothing(
    session_id: int, epoch: int, code: int
) -> None:
    session = begun(A)
    with pytest.raises(SessionError) as refused:
        session.apply(session_id, epoch, [(B, at(3))], [A], 9)
    assert refused.value.code == code
    assert session.wanted == {A: at(0)}
    assert not session.apply(7, 1, [], [], 9)


def test_a_client_without_sessions_names_all_each_time() -> None:
    session = FetchSession()
    for offset in (0, 5):
        assert session.apply(NO_SESSION, FINAL, [(A, at(offset))], [], 7)
        assert session.session_id == NO_SESSION
        assert session.wanted == {A: at(offset)}
    with pytest.raises(SessionError):
        session.apply(NO_SESSION, 1, [], [], 7)


def test_a_final_request_ends_the_session() -> None:
    session = begun(A)
    assert session.apply(7, FINAL, [(B, at(1))], [], 8)
    assert session.session_id == NO_SESSION
    with pytest.raises(SessionError) as refused:
        session.apply(7, 1, [], [], 8)
    assert refused.value.code == SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("named", [NO_SESSION, 7, 6])
def test_a_full_request_replaces_the_session_also_if_it_names_another(named: int) -> None:
    session = begun(A)
    assert session.apply(named, FULL, [(B, at(1))], [], 8)
    assert session.session_id == 8
    assert session.wanted == {B: at(1)}


def test_a_final_request_that_names_a_session_that_is_gone_is_served() -> None:
    session = begun(A)
    assert session.apply(6, FINAL, [(B, at(1))], [], 8)
    assert session.session_id == NO_SESSION
    assert session.wanted == {B: at(1)}


def test_without_room_or_partitions_there_is_no_session() -> None:
    session = FetchSession()
    assert session.apply(NO_SESSION, FULL, [(A, at(0))], [], NO_SESSION)
    assert session.session_id == NO_SESSION
    assert session.apply(NO_SESSION, FULL, [], [], 7)
    assert session.session_id == NO_SESSION


def test_a_session_that_grows_without_end_ends() -> None:
    """A client added partitions with each request, and each fetch visited them all."""
    session = begun(A)
    for epoch in (1, 2):
        session.apply(7, epoch, [(("t", b"", epoch * 9_000 + n), at(0)) for n in range(9_000)], [], 8)
    with pytest.raises(SessionError) as refused:
        session.apply(7, 3, [(("t", b"", n), at(0)) for n in range(9_000)], [], 8)
    assert refused.value.code == SESSION_ID_NOT_FOUND
    assert (session.session_id, session.wanted) == (NO_SESSION, {})


def test_the_largest_session_fits_into_one_full_fetch() -> None:
    """A client that begins the session again names all of its partitions in one request."""
    body = request_body(Api.FETCH, 13)
    partitions = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1} for n in range(SESSION_PARTITIONS_MAX)]
    out = bytearray()
    body.write({"max_wait": 1, "min_bytes": 1, "topics": [{"topic_id": bytes(16), "partitions": partitions}]}, out)
    assert len(body.read(bytes(out), 0).topics[0].partitions) == SESSION_PARTITIONS_MAX


def test_epochs_wrap_around_to_one() -> None:
    session = begun(A)
    session._next_epoch = 2**31 - 1
    session.apply(7, 2**31 - 1, [], [], 8)
    session.apply(7, 1, [], [], 8)


def test_a_transaction_that_was_aborted_in_two_parts_of_an_answer_is_named_once() -> None:
    """librdkafka takes one name from the list for each abort marker: a second one would hide later records."""
    aborted = [{"producer_id": 7, "first_offset": 3}, {"producer_id": 8, "first_offset": 4}]
    before = {"partition_index": 0, "records": b"ab", "aborted_transactions": aborted[:1], "high_watermark": 5}
    after = {"partition_index": 0, "records": b"cd", "aborted_transactions": aborted, "high_watermark": 6}
    assert _joined(before, after) == {**after, "records": b"abcd"}


def test_an_error_behind_the_records_of_an_earlier_part_is_left_to_the_next_request() -> None:
    records = {"partition_index": 0, "records": b"ab", "high_watermark": 5}
    failed = {"partition_index": 0, "records": b"", "error_code": 6, "high_watermark": -1}
    assert _joined(records, failed) == records
    assert _joined({**records, "records": b""}, failed) == failed
