"""Which quota applies, and what a client gets: the table against a list of rules, the bucket against an exact model."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import ThrottlingQuotaExceededError
from headrace_core.metadata.security import QuotaEntity
from headrace_core.quotas import ClientLimits, QuotaManager, QuotaTable, TokenBucket, throttle_ms
from headrace_core.quotas.manager import BUCKETS_MAX
from tests.worlds.this_process import examples

KEY = "producer_byte_rate"
USERS, CLIENTS = ("alice", "bob"), ("app", "web")


def entity_of(user: str | bool | None, client: str | bool | None) -> QuotaEntity:
    """False: no part of the type; None: its default."""
    parts: list[tuple[str, str | None]] = []
    if client is not False:
        parts.append(("client-id", client))  # type: ignore[arg-type]
    if user is not False:
        parts.append(("user", user))  # type: ignore[arg-type]
    return tuple(parts)


ENTITIES = [
    entity_of(user, client)
    for user, client in itertools.product((False, None, *USERS), (False, None, *CLIENTS))
    if (user, client) != (False, False)
]
#: Kafka's order (ClientQuotaManager.DefaultQuotaCallback): what has to be named, and who shares the quota.
ORDER = (
    ("user", "client"),
    ("user", None),
    ("user", False),
    (None, "client"),
    (None, None),
    (None, False),
    (False, "client"),
    (False, None),
)


def model(quotas: dict[QuotaEntity, float], default: float | None, user: str, client: str) -> tuple[float, str] | None:
    for named_user, named_client in ORDER:
        wanted = entity_of(
            user if named_user == "user" else named_user, client if named_client == "client" else named_client
        )
        if wanted in quotas:
            shared = f"{'' if named_user is False else user}/{'' if named_client is False else client}"
            return quotas[wanted], shared
    return None if default is None else (default, f"/{client}")


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(st.sampled_from(ENTITIES), st.integers(1, 1000).map(float), max_size=8),
    st.none() | st.integers(1, 1000).map(float),
)
def test_the_first_entity_in_kafkas_order_applies(quotas: dict[QuotaEntity, float], default: float | None) -> None:
    table = QuotaTable(
        {entity: {KEY: value} for entity, value in quotas.items()}, {} if default is None else {KEY: default}
    )
    for user, client in itertools.product((*USERS, "carol"), (*CLIENTS, "")):
        found = table.find(KEY, user, client)
        expected = model(quotas, default, user, client)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert (found.rate, f"{found.user or ''}/{found.client_id or ''}") == expected
        assert table.find("consumer_byte_rate", user, client) is None


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(1, 50),
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), min_size=1, max_size=40),
)
def test_a_bucket_is_exact(rate: int, burst: int, steps: list[tuple[int, int]]) -> None:
    bucket, tokens, now = TokenBucket(rate, burst, 0.0), Fraction(burst), Fraction(0)
    for quarter_seconds, amount in steps:
        passed = Fraction(quarter_seconds, 4)
        now += passed
        tokens = min(tokens + passed * rate, Fraction(burst)) - amount
        expected = float(-tokens / rate) if tokens < 0 else 0.0
        assert bucket.spend(amount, float(now)) == pytest.approx(expected)
        assert bucket.wait_s(float(now)) == pytest.approx(expected)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 100), st.lists(st.integers(1, 300), min_size=5, max_size=60))
def test_a_client_that_keeps_the_waits_gets_its_rate(rate: int, sizes: list[int]) -> None:
    manager = QuotaManager()
    manager.apply({(("user", "alice"),): {KEY: float(rate)}})
    limits = ClientLimits(manager, "alice", "app")
    now = 1_000.0
    for size in sizes:
        now += limits.produced(size, now)
    elapsed = now - 1_000.0
    sent = sum(sizes)
    assert sent <= rate * elapsed + rate + max(sizes) + 1e-6
    assert sent >= rate * elapsed - 1e-6


def test_clients_share_what_their_entity_shares() -> None:
    manager = QuotaManager()
    manager.apply({(("user", "alice"),): {KEY: 100.0}, (("client-id", None),): {KEY: 100.0}})
    of_alice = ClientLimits(manager, "alice", "app"), ClientLimits(manager, "alice", "web")
    of_others = ClientLimits(manager, "bob", "app"), ClientLimits(manager, "carol", "app")
    other = ClientLimits(manager, "bob", "web")
    for first, second in (of_alice, of_others):
        assert first.produced(100, 0.0) == 0.0
        assert second.produced(100, 0.0) == pytest.approx(1.0)
    assert other.produced(100, 0.0) == 0.0


def test_a_changed_quota_applies_to_an_open_connection_and_keeps_the_wait() -> None:
    manager = QuotaManager()
    limits = ClientLimits(manager, "alice", "app")
    assert limits.produced(10**9, 0.0) == 0.0
    assert not limits.has_any
    manager.apply({(("user", "alice"),): {KEY: 100.0}})
    assert limits.produced(300, 0.0) == pytest.approx(2.0)
    manager.apply({(("user", "alice"),): {KEY: 1000.0}})
    assert limits.produced(0, 0.0) == pytest.approx(2.0), "no wait is shortened, and none is lengthened"
    assert limits.produced(1000, 0.0) == pytest.approx(3.0)
    manager.apply({})
    assert limits.produced(10**9, 0.0) == 0.0


def test_defaults_of_the_properties_file_apply_last() -> None:
    manager = QuotaManager(defaults={KEY: 10.0})
    assert ClientLimits(manager, "a", "x").produced(30, 0.0) == pytest.approx(2.0)
    manager.apply({(("client-id", "x"),): {KEY: 1000.0}})
    assert ClientLimits(manager, "b", "x").produced(30, 10.0) == 0.0
    manager.apply({}, {})
    assert ClientLimits(manager, "a", "y").produced(10**9, 0.0) == 0.0


def test_mutations_are_refused_while_the_client_is_over_its_quota() -> None:
    """KIP-599: one request may exceed the burst of all windows, and the next ones are refused until the bucket has
    filled."""
    manager = QuotaManager(windows=11)
    manager.apply({(("user", "alice"),): {"controller_mutation_rate": 2.0}})
    limits = ClientLimits(manager, "alice", "app")
    assert limits.mutated(20, 0.0) == 0.0
    assert limits.mutated(10, 0.0) == pytest.approx(4.0)
    with pytest.raises(ThrottlingQuotaExceededError, match="retry in 4000 ms"):
        limits.mutated(1, 0.0)
    with pytest.raises(ThrottlingQuotaExceededError, match="retry in 1 ms"):
        limits.mutated(1, 3.9999)
    assert limits.mutated(1, 4.0) == pytest.approx(0.5)
    assert ClientLimits(manager, "bob", "app").mutated(10**6, 0.0) == 0.0
    assert manager.throttled["controller_mutation_rate"] == 2


def test_time_and_connections_wait_at_most_one_window() -> None:
    manager = QuotaManager(window_s=1.0)
    manager.apply(
        {
            (("user", None),): {"request_percentage": 10.0},
            (("ip", "10.0.0.1"),): {"connection_creation_rate": 2.0},
            (("ip", None),): {"connection_creation_rate": 1.0},
        }
    )
    limits = ClientLimits(manager, "alice", "app")
    assert limits.measures_work
    assert limits.worked(0.05, 0.0) == 0.0
    assert limits.worked(0.06, 0.0) == pytest.approx(0.1)
    assert limits.worked(9.0, 0.0) == 1.0
    assert [manager.connected("::ffff:10.0.0.1", 0.0) for _ in range(3)] == pytest.approx([0.0, 0.0, 0.5])
    assert [manager.connected("10.0.0.2", 0.0) for _ in range(4)] == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert manager.connected("unix:socket", 0.0) == 0.0


def test_strangers_cannot_make_buckets_without_a_bound() -> None:
    manager = QuotaManager()
    manager.apply({(("client-id", None),): {KEY: 100.0}})
    for number in range(BUCKETS_MAX + 10):
        ClientLimits(manager, "ANONYMOUS", f"client-{number}").produced(1_000, 0.0)
    assert len(manager._buckets) == BUCKETS_MAX


def test_a_response_is_at_most_one_window_long() -> None:
    manager = QuotaManager()
    assert ClientLimits(manager, "a", "b").fetch_bytes_max(0.0) is None
    manager.apply({(("user", "a"),): {"consumer_byte_rate": 5000.0}})
    assert ClientLimits(manager, "a", "b").fetch_bytes_max(0.0) == 5000


def test_waits_are_rounded_up() -> None:
    assert [throttle_ms(wait) for wait in (-1.0, 0.0, 0.0001, 1.0, 1e12)] == [0, 0, 1, 1000, 2**31 - 1]


def test_the_first_request_of_a_stream_waits_for_what_the_client_owes() -> None:
    manager = QuotaManager()
    manager.apply({entity_of("alice", False): {KEY: 100.0, "request_percentage": 1.0}})
    streams = [ClientLimits(manager, "alice", "app") for _ in range(4)]
    assert streams[0].first_wait_s(KEY, 0.0) == 0.0
    assert streams[0].produced(400, 0.0) == 3.0
    assert [each.first_wait_s(KEY, 1.0) for each in streams] == [2.0] * 4
    assert ClientLimits(manager, "bob", "app").first_wait_s(KEY, 1.0) == 0.0
    streams[0].worked(100.0, 1.0)
    assert streams[1].first_wait_s("request_percentage", 1.0) == manager.window_s


def test_one_new_stream_in_twenty_seconds_waits_less_than_the_client_owes() -> None:
    """Otherwise clients with timeouts of 30 s never get in; and if all did so, the quota would be none."""
    manager = QuotaManager()
    manager.apply({entity_of("alice", False): {KEY: 100.0}})
    streams = [ClientLimits(manager, "alice", "app") for _ in range(3)]
    streams[0].produced(10_100, 0.0)
    assert [each.first_wait_s(KEY, 0.0) for each in streams] == [20.0, 100.0, 100.0]
    assert [each.first_wait_s(KEY, 20.0) for each in streams] == [20.0, 80.0, 80.0]
    assert [each.first_wait_s(KEY, 85.0) for each in streams] == [15.0] * 3
