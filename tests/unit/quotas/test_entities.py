"""The words of quotas: what Kafka's controller takes, and what it refuses (KIP-546)."""

from __future__ import annotations

import pytest

from headrace_core.errors import InvalidRequestError
from headrace_core.quotas import FilterPart, checked_entity, checked_filter, checked_value, matches, shown_entity

ALICE = (("user", "alice"),)
APP = (("client-id", "app"),)
ALICE_APP = (("client-id", "app"), ("user", "alice"))
ALICE_ANY = (("client-id", None), ("user", "alice"))
HOME = (("ip", "127.0.0.1"),)


def test_the_parts_of_an_entity_are_sorted_and_shown() -> None:
    entity = checked_entity([("user", "alice"), ("client-id", None)])
    assert entity == ALICE_ANY
    assert shown_entity(entity) == "client-id=<default>, user=alice"


def test_an_address_has_one_notation() -> None:
    assert checked_entity([("ip", "::ffff:10.0.0.1")]) == (("ip", "10.0.0.1"),)
    assert checked_entity([("ip", "fe80::1%eth0")]) == (("ip", "fe80::1"),)
    assert checked_entity([("ip", "2001:DB8:0::1")]) == (("ip", "2001:db8::1"),)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "no parts"),
        ([("group", "g")], "type 'group' is not one of"),
        ([("user", "a"), ("user", "b")], "two parts of the type user"),
        ([("user", "")], "empty user"),
        ([("client-id", "x" * 1025)], "1025 characters"),
        ([("ip", "localhost")], "is not an IP address"),
        ([("ip", "10.0.0.1"), ("user", "a")], "an ip cannot also have a user"),
    ],
)
def test_what_is_no_entity_is_refused(parts: list[tuple[str, str | None]], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        checked_entity(parts)


@pytest.mark.parametrize(
    ("entity", "key", "value", "why"),
    [
        (ALICE, "producer_byte_rate", 0, "must be above 0"),
        (ALICE, "producer_byte_rate", -1, "must be above 0"),
        (ALICE, "producer_byte_rate", float("nan"), "must be above 0"),
        (ALICE, "producer_byte_rate", float("inf"), "must be above 0"),
        (ALICE, "producer_byte_rate", 1.5, "must be a whole number"),
        (ALICE, "consumer_byte_rate", 1e19, "is above"),
        (ALICE, "connection_creation_rate", 1, "is not one of producer_byte_rate"),
        (ALICE, "bytes", 1, "quota key 'bytes'"),
        (HOME, "producer_byte_rate", 1, "is not one of connection_creation_rate"),
        (HOME, "connection_creation_rate", 2**31, "is above"),
    ],
)
def test_what_is_no_quota_is_refused(
    entity: tuple[tuple[str, str | None], ...], key: str, value: float, why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        checked_value(entity, key, value)


def test_values_are_stored_as_kafka_stores_them() -> None:
    assert checked_value(ALICE, "producer_byte_rate", 1024.0000001) == 1024.0
    assert checked_value(ALICE, "request_percentage", 12.5) == 12.5
    assert checked_value(HOME, "connection_creation_rate", 2**31 - 1) == 2**31 - 1


@pytest.mark.parametrize(
    ("entity", "parts", "strict", "expected"),
    [
        (ALICE_APP, [], False, True),
        (ALICE_APP, [], True, False),
        (ALICE_APP, [FilterPart("user", "alice")], False, True),
        (ALICE_APP, [FilterPart("user", "alice")], True, False),
        (ALICE, [FilterPart("user", "alice")], True, True),
        (ALICE, [FilterPart("user", is_default=True)], False, False),
        (ALICE_ANY, [FilterPart("client-id", is_default=True)], False, True),
        (ALICE_ANY, [FilterPart("client-id", "app")], False, False),
        (ALICE_ANY, [FilterPart("client-id"), FilterPart("user")], True, True),
        (APP, [FilterPart("user")], False, False),
        (HOME, [FilterPart("ip")], False, True),
    ],
)
def test_filters_select_as_in_kip_546(
    entity: tuple[tuple[str, str | None], ...], parts: list[FilterPart], strict: bool, expected: bool
) -> None:
    assert matches(entity, checked_filter(parts), strict=strict) is expected


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([FilterPart("group")], "is not one of"),
        ([FilterPart("user"), FilterPart("user")], "two parts"),
        ([FilterPart("ip"), FilterPart("user")], "cannot also have a user"),
        ([FilterPart("user", "")], "empty user"),
    ],
)
def test_what_is_no_filter_is_refused(parts: list[FilterPart], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        checked_filter(parts)
