"""The authorizer decides as a slow, plain model of Kafka's StandardAuthorizer does."""

from __future__ import annotations

import ipaddress
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import InvalidRequestError
from headrace_core.metadata.records import AclRecord
from headrace_core.security import authorizer as authorizer_module
from headrace_core.security.acl import AclFilter, check_entry
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorizer import KEPT_MAX, Authorizer
from headrace_core.security.caller import Caller
from headrace_core.security.principal import Principal
from tests.worlds.this_process import examples

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
NAMES = ("a", "ab", "abc", "b", "hardcode")
HOSTS = ("10.0.0.1", "10.0.0.2", "10.1.0.1", "::1")
PRINCIPALS = ("alice", "bob")
OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)


def entry(
    name: str = "orders",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    resource: ResourceType = TOPIC,
) -> AclRecord:
    return AclRecord(b"", resource, name, pattern, principal, host, operation, permission)


def caller(name: str = "alice", host: str = "10.0.0.1") -> Caller:
    return Caller(Principal("User", name), host)


entries = st.builds(
    entry,
    st.sampled_from((*NAMES, "*")),
    st.sampled_from((*OPERATIONS, Operation.ALL)),
    st.sampled_from((Permission.ALLOW, Permission.DENY)),
    principal=st.sampled_from(("User:alice", "User:bob", "User:*")),
    host=st.sampled_from(("*", "10.0.0.1", "10.0.0.0/24", "10.0.0.0/8", "::/0")),
    pattern=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    resource=st.sampled_from((TOPIC, GROUP)),
)

_IMPLIES_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)


def concerns(each: AclRecord, resource: int, name: str) -> bool:
    if each.resource_type != resource:
        return False
    if each.pattern_type == PatternType.PREFIXED:
        return name.startswith(each.resource_name)
    return each.resource_name in (name, "*")


def is_for(each: AclRecord, who: Caller) -> bool:
    if each.principal not in (str(who.principal), "User:*"):
        return False
    if each.host == "*":
        return True
    address, network = ipaddress.ip_address(who.host), ipaddress.ip_network(each.host)
    return address.version == network.version and address in network


def slow(acls: list[AclRecord], who: Caller, operation: Operation, resource: int, name: str, *, everyone: bool) -> bool:
    here = [each for each in acls if concerns(each, resource, name)]
    if not here:
        return everyone
    mine = [each for each in here if is_for(each, who)]
    if any(each.permission == Permission.DENY and each.operation in (operation, Operation.ALL) for each in mine):
        return False
    wanted = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        wanted |= set(_IMPLIES_DESCRIBE)
    if operation is Operation.DESCRIBE_CONFIGS:
        wanted.add(Operation.ALTER_CONFIGS)
    return any(each.permission == Permission.ALLOW and each.operation in wanted for each in mine)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(entries, max_size=8),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.booleans(),
)
def test_decides_as_the_plain_model(acls: list[AclRecord], name: str, host: str, everyone: bool) -> None:
    authorizer = Authorizer(acls, allow_everyone=everyone)
    who = caller(name, host)
    for resource in (TOPIC, GROUP):
        for topic in (*NAMES, "abcd", "zzz"):
            for operation in OPERATIONS:
                expected = slow(acls, who, operation, resource, topic, everyone=everyone)
                assert authorizer.allows(who, operation, resource, topic) is expected


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(entries, max_size=8), st.sampled_from(PRINCIPALS), st.sampled_from(HOSTS), st.booleans())
def test_any_resource_is_allowed_exactly_when_one_exists(
    acls: list[AclRecord], name: str, host: str, everyone: bool
) -> None:
    """The names that matter: each pattern, each pattern with a suffix that no entry has, and a name without entries."""
    who = caller(name, host)
    candidates = {
        each.resource_name for each in acls if each.resource_name != "*" or each.pattern_type == PatternType.PREFIXED
    }
    candidates |= {f"{each}~unused" for each in candidates} | {"~unused"}
    expected = any(slow(acls, who, Operation.WRITE, TOPIC, each, everyone=everyone) for each in candidates)
    assert Authorizer(acls, allow_everyone=everyone).allows_any(who, Operation.WRITE, TOPIC) is expected


def test_super_users_may_do_everything_in_spite_of_denials() -> None:
    authorizer = Authorizer([entry(permission=Permission.DENY)], ["User:alice"])
    assert authorizer.allows(caller(), Operation.READ, TOPIC, "orders")
    assert authorizer.allows_any(caller(), Operation.WRITE, TOPIC)
    assert not authorizer.allows(caller("bob"), Operation.READ, TOPIC, "orders")


def test_everyone_is_allowed_only_where_no_entry_concerns_the_resource() -> None:
    authorizer = Authorizer([entry("orders", principal="User:bob")], allow_everyone=True)
    assert not authorizer.allows(caller(), Operation.READ, TOPIC, "orders")
    assert authorizer.allows(caller(), Operation.READ, TOPIC, "others")


def test_an_unknown_address_is_denied_by_any_host_and_allowed_by_none() -> None:
    denied = Authorizer([entry(), entry(permission=Permission.DENY, host="10.0.0.0/8")])
    assert not denied.allows(caller(host=""), Operation.READ, TOPIC, "orders")
    allowed = Authorizer([entry(host="10.0.0.0/8")])
    assert not allowed.allows(caller(host=""), Operation.READ, TOPIC, "orders")


def test_authorized_operations_are_those_of_the_resource_type() -> None:
    authorizer = Authorizer([entry("t", Operation.ALL)])
    assert authorizer.authorized_operations(caller(), TOPIC, "t") == {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        entry(""),
        entry(host="server.example.com"),
        entry(host="10.0.0.0/33"),
        entry(host="10.0.0.0/0.0.0.255"),
        entry(host="10.0.0.0/"),
        entry(host="10.1/8"),
        entry(host="*/8"),
        entry(host="2001:db8::/129"),
        entry(host="::ffff:0:0/95"),
        entry(principal="alice"),
        entry("other", resource=ResourceType.CLUSTER),
        entry(operation=Operation.ANY),
        entry(permission=Permission.ANY),
        entry(pattern=PatternType.MATCH),
        entry("x" * 2_000),
    ],
)
def test_invalid_entries_are_refused(wrong: AclRecord) -> None:
    with pytest.raises(InvalidRequestError):
        check_entry(wrong)


def test_hosts_are_stored_in_one_form() -> None:
    assert check_entry(entry(host="::ffff:10.0.0.1")).host == "10.0.0.1"
    assert check_entry(entry(host="fe80::1%eth0")).host == "fe80::1"
    assert check_entry(entry(host="10.0.0.1/8")).host == "10.0.0.0/8"
    assert check_entry(entry(host="2001:db8::1/32")).host == "2001:db8::/32"
    assert check_entry(entry(host="fe80::1%eth0/64")).host == "fe80::/64"
    assert check_entry(entry(host="::ffff:10.0.0.1/104")).host == "10.0.0.0/8"


@pytest.mark.parametrize(
    ("host", "denied", "allowed"),
    [
        ("10.0.0.1/8", ["10.0.0.0", "10.255.255.255", "::ffff:10.9.9.9"], ["11.0.0.0", "2001:db8::1"]),
        ("10.0.0.1/32", ["10.0.0.1"], ["10.0.0.0"]),
        ("0.0.0.0/0", ["10.0.0.1", "255.255.255.255"], ["::1"]),
        ("::/0", ["::1", "2001:db8::1"], ["10.0.0.1"]),
        ("2001:db8::1/32", ["2001:db8::", "2001:db8:ffff::1"], ["2001:db9::1"]),
        ("::ffff:10.0.0.0/104", ["10.0.0.1", "::ffff:10.0.0.1"], ["11.0.0.1"]),
    ],
)
def test_a_network_denies_its_addresses_only(host: str, denied: list[str], allowed: list[str]) -> None:
    authorizer = Authorizer([entry(), check_entry(entry(permission=Permission.DENY, host=host))])
    assert not any(authorizer.allows(caller(host=each), Operation.READ, TOPIC, "orders") for each in denied)
    assert all(authorizer.allows(caller(host=each), Operation.READ, TOPIC, "orders") for each in allowed)


def test_the_zone_of_a_link_local_address_evades_no_denial() -> None:
    """A broker sees the clients of its own network with the zone: fe80::1%eth0."""
    for host in ("fe80::1", "fe80::/64", "fe80::1%eth1"):
        denying = Authorizer([entry(), entry(permission=Permission.DENY, host=host)])
        for seen in ("fe80::1", "fe80::1%eth0"):
            assert not denying.allows(caller(host=seen), Operation.READ, TOPIC, "orders"), (host, seen)
        assert denying.allows(caller(host="fe80:0:0:1::2%eth0"), Operation.READ, TOPIC, "orders")
    assert check_entry(entry(host="0:0::1")).host == "::1"


def test_a_match_filter_finds_the_patterns_that_concern_a_name() -> None:
    acls = [
        entry("ab"),
        entry("*"),
        entry("a", pattern=PatternType.PREFIXED),
        entry("abc", pattern=PatternType.PREFIXED),
    ]
    wanted = AclFilter(resource_type=TOPIC, resource_name="ab", pattern_type=PatternType.MATCH)
    assert [each.resource_name for each in acls if wanted.matches(each)] == ["ab", "*", "a"]
    exact = AclFilter(resource_name="ab", pattern_type=PatternType.ANY)
    assert [each.resource_name for each in acls if exact.matches(each)] == ["ab"]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(entries, max_size=8), st.lists(st.tuples(st.integers(0, 7), entries), max_size=6), st.booleans())
def test_an_authorizer_of_changed_entries_decides_as_the_plain_model(
    acls: list[AclRecord], changes: list[tuple[int, AclRecord]], everyone: bool
) -> None:
    before = Authorizer(acls, allow_everyone=everyone)
    now, kept = before, list(acls)
    for place, new in changes:  # replace an entry, or add one
        removed = [kept.pop(place)] if place < len(kept) else []
        kept.append(new)
        now = now.changed(removed, [new])
    for authorizer, of in ((before, acls), (now, kept)):
        assert authorizer.names_hosts is any(each.host != "*" for each in of)
        for who in (caller("alice", "10.0.0.2"), caller("bob", "::1")):
            for topic in (*NAMES, "abcd", "zzz"):
                expected = slow(of, who, Operation.READ, TOPIC, topic, everyone=everyone)
                assert authorizer.allows(who, Operation.READ, TOPIC, topic) is expected
                assert (topic in authorizer.granted(who, Operation.READ, TOPIC)) is expected


def test_a_changed_authorizer_loses_its_last_prefix() -> None:
    prefix = entry("o", pattern=PatternType.PREFIXED)
    authorizer = Authorizer([prefix, entry("other")])
    assert authorizer.allows(caller(), Operation.READ, TOPIC, "orders")
    changed = authorizer.changed([prefix], [])
    assert not changed.allows(caller(), Operation.READ, TOPIC, "orders")
    assert changed.allows(caller(), Operation.READ, TOPIC, "other")
    assert authorizer.allows(caller(), Operation.READ, TOPIC, "orders")
    with pytest.raises(ValueError, match="not in list"):
        changed.changed([prefix], [])


def test_granted_names_are_of_one_caller_and_one_operation() -> None:
    authorizer = Authorizer([entry("t", host="10.0.0.1"), entry("t", Operation.WRITE)])
    assert authorizer.allows(caller(), Operation.READ, TOPIC, "t")
    assert authorizer.granted(caller(), Operation.READ, TOPIC) == {"t"}
    assert not authorizer.granted(caller(), Operation.WRITE, TOPIC)
    assert not authorizer.granted(caller(), Operation.READ, GROUP)
    assert not authorizer.granted(caller("bob"), Operation.READ, TOPIC)
    assert not authorizer.granted(caller(host="10.0.0.2"), Operation.READ, TOPIC)
    assert not authorizer.allows(caller(), Operation.READ, TOPIC, "refused")
    assert authorizer.granted(caller(), Operation.READ, TOPIC) == {"t"}


def test_granted_names_are_bounded() -> None:
    authorizer = Authorizer([entry("*")])
    for number in range(2 * KEPT_MAX + 7):
        assert authorizer.allows(caller(), Operation.READ, TOPIC, f"t{number}")
        assert authorizer.allows(caller(host=f"10.0.{number >> 8}.{number & 255}"), Operation.READ, TOPIC, "t")
    sets = authorizer._granted
    assert len(sets) <= KEPT_MAX
    assert sum(map(len, sets.values())) <= KEPT_MAX


def test_ten_thousand_entries_cost_microseconds_a_check() -> None:
    acls = [
        entry(f"topic-{number}", pattern=pattern, principal=f"User:u{number % 100}")
        for number in range(5_000)
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
    ]
    authorizer = Authorizer(acls)
    who = caller("u7")
    names = [f"topic-{number}" for number in range(5_000)]
    started = time.thread_time()
    for name in names:
        authorizer.allows(who, Operation.READ, TOPIC, name)
    first = (time.thread_time() - started) / len(names)
    started = time.thread_time()
    for name in names:
        authorizer.allows(who, Operation.READ, TOPIC, name)
    again = (time.thread_time() - started) / len(names)
    print(f"first {first * 1e6:.2f} µs, repeated {again * 1e6:.2f} µs")
    assert first < 200e-6  # generous: a linear search takes milliseconds
    assert again < 20e-6


def test_the_question_for_any_resource_reads_the_entries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without rights asked for producer ids: each request took 50 ms with 100,000 entries."""
    visited = [0]
    masks_of = authorizer_module._masks_of

    def counted(*args: Any) -> tuple[int, int]:
        visited[0] += 1
        return masks_of(*args)

    monkeypatch.setattr(authorizer_module, "_masks_of", counted)
    acls = [entry(f"t{number}", Operation.WRITE, principal="User:bob") for number in range(500)]
    authorizer = Authorizer([*acls, entry("own", Operation.WRITE, host="10.0.0.1")])
    for _ in range(50):
        assert not authorizer.allows_any(caller("eve"), Operation.WRITE, TOPIC)
    assert visited[0] <= 2 * 501
    assert authorizer.allows_any(caller("bob"), Operation.WRITE, TOPIC)
    assert not authorizer.allows_any(caller("bob"), Operation.READ, TOPIC)
    assert not authorizer.allows_any(caller("bob"), Operation.WRITE, GROUP)
    assert authorizer.allows_any(caller(host="10.0.0.1"), Operation.WRITE, TOPIC)
    assert not authorizer.allows_any(caller(host="10.0.0.2"), Operation.WRITE, TOPIC)
    changed = authorizer.changed(acls, [entry("new", Operation.WRITE, principal="User:eve")])
    assert changed.allows_any(caller("eve"), Operation.WRITE, TOPIC)
    assert not changed.allows_any(caller("bob"), Operation.WRITE, TOPIC)


def test_outcomes_of_long_names_use_no_memory() -> None:
    """A user without any right asked for long names, and the node kept 10,000 of them."""
    authorizer = Authorizer([entry("o", pattern=PatternType.PREFIXED)])
    tracemalloc.start()
    try:
        for number in range(50):
            assert authorizer.allows(caller(), Operation.READ, TOPIC, f"o{number}" + "x" * 1_000_000)
            assert not authorizer.allows(caller("bob"), Operation.READ, TOPIC, f"o{number}" + "x" * 1_000_000)
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()
