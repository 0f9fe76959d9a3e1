"""Translates Headrace's errors to Kafka's error numbers. Headrace uses Kafka's error codes and numbers, and has
additional errors with numbers from 1000 on.

Kafka's brokers never send NETWORK_EXCEPTION. librdkafka does not retry after this error, so an idempotent producer
would fail. If an answer is lost, the broker returns REQUEST_TIMED_OUT: every client retries after this error, and
knows that the request may have had an effect.
"""

from __future__ import annotations

from headrace_core.errors import HeadraceError

NONE = 0
UNKNOWN_SERVER_ERROR = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
REPLICA_NOT_AVAILABLE = 9
INVALID_TOPIC_EXCEPTION = 17
INVALID_CONFIG = 40
INVALID_TXN_STATE = 48
INVALID_REQUEST = 42
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
UNKNOWN_TOPIC_ID = 100
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115
TRANSACTION_ABORTABLE = 120

_OURS = 1_000
#: Maps error numbers that Kafka's clients do not expect to Kafka's nearest error number. With the nearest error number,
#: a client reacts correctly: it retries, or gives up.
_NEAREST = {
    13: 7,  # NETWORK_EXCEPTION: REQUEST_TIMED_OUT
    1001: 6,  # FENCED_BROKER: NOT_LEADER_OR_FOLLOWER
    1002: 56,  # DISK_FULL: KAFKA_STORAGE_ERROR
    1003: 56,  # CORRUPT_LOG: KAFKA_STORAGE_ERROR
    1004: 6,  # SERVER_SHUTTING_DOWN: NOT_LEADER_OR_FOLLOWER
    1005: 7,  # SERVER_BUSY: REQUEST_TIMED_OUT
    1006: 7,  # VOTER_CHANGE_IN_PROGRESS: REQUEST_TIMED_OUT
    1007: 7,  # REPLICA_NOT_CAUGHT_UP: REQUEST_TIMED_OUT
    1008: UNKNOWN_SERVER_ERROR,  # DIVERGING_METADATA
    1009: 16,  # FENCED_SHARD_EPOCH: NOT_COORDINATOR
    1010: 16,  # UNEXPECTED_LOG_END: NOT_COORDINATOR
}
#: Maps error numbers that Kafka's coordinators never send to the numbers that they send instead. For Kafka's consumers
#: and producers, other numbers in a coordinator's answer are fatal: ``poll`` or ``commitSync`` raises them, or the
#: transactional producer ends.
_OF_COORDINATORS = {
    6: 16,  # NOT_LEADER_OR_FOLLOWER: NOT_COORDINATOR
    7: 15,  # REQUEST_TIMED_OUT: COORDINATOR_NOT_AVAILABLE
    56: 16,  # KAFKA_STORAGE_ERROR: NOT_COORDINATOR
}


def kafkas(code: int) -> int:
    """Kafka's error number for the error number in a ``headrace.v1.Error`` (0: no error)."""
    return _NEAREST.get(code, code if code < _OURS else UNKNOWN_SERVER_ERROR)


def abortable(code: int) -> int:
    """The number in place of ``code`` for a client of transaction version 1 that knows TRANSACTION_ABORTABLE. Nodes of
    Headrace answer INVALID_TXN_STATE to all clients of version 1, which ends such a client's producer."""
    return TRANSACTION_ABORTABLE if code == INVALID_TXN_STATE else code


def number(error: HeadraceError | None) -> int:
    """Kafka's error number of ``error``; 0 for None."""
    return NONE if error is None else kafkas(error.number)


def of_coordinator(code: int) -> int:
    """Like ``kafkas``, for the answer of a coordinator about a group's members or offsets, or about a transaction."""
    found = kafkas(code)
    return _OF_COORDINATORS.get(found, found)
