"""Every error of ours has a number that Kafka's clients know."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace_core.errors import BY_CODE, NetworkError, RequestTimedOutError, UnknownTopicIdError
from headrace_kafka.errors import kafkas, number

KNOWN = {each.value: each.name.upper() for each in ErrorCode}
#: Kafka names the exception, not the code, in these.
RENAMED = {"INVALID_PRODUCER_ID_MAPPING", "KAFKA_STORAGE_ERROR"}


def test_every_code_has_a_number_of_kafka() -> None:
    for code, error in BY_CODE.items():
        found = number(error("x"))
        assert found in KNOWN, code
        assert found != 0
        if 0 < error.number < 1_000 and code != "NETWORK_EXCEPTION":
            assert KNOWN[found] == code


def test_our_own_codes_have_a_kafka_twin_that_clients_treat_alike() -> None:
    for code, error in BY_CODE.items():
        if error.number >= 1_000 and code not in ("DIVERGING_METADATA",):
            assert kafkas(error.number) in (6, 7, 16, 56), code


def test_a_lost_answer_has_a_number_that_librdkafka_retries() -> None:
    """librdkafka fails the records of an idempotent producer on NETWORK_EXCEPTION, which no broker of Kafka sends."""
    assert number(NetworkError("the broker was killed")) == RequestTimedOutError.number


def test_no_error_is_zero() -> None:
    assert number(None) == kafkas(0) == 0
    assert number(UnknownTopicIdError("x")) == 100
