"""Limits of sign-in attempts: guessing is slow, and keeps no one else out."""

from __future__ import annotations

import ipaddress

import pytest

from headrace_console.attempts import (
    KEPT_MAX,
    PER_ADDRESS_MAX,
    PER_USER_MAX,
    REFILL_S,
    Attempt,
    Attempts,
    browser_address,
    network_of,
)
from tests.unit.console.test_sessions import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> Attempts:
    return Attempts(clock)


def guesses(attempts: Attempts, user: str, address: str, count: int = 1_000) -> int:
    """How many of ``count`` wrong passwords the cluster is asked about."""
    return sum(isinstance(attempts.begin(user, address), Attempt) for _ in range(count))


def test_an_address_may_guess_a_few_times_and_then_slowly(attempts: Attempts, clock: Clock) -> None:
    assert guesses(attempts, "alice", "10.0.0.1") == PER_ADDRESS_MAX
    wait_s = attempts.begin("alice", "10.0.0.1")
    assert isinstance(wait_s, float)
    assert 0 < wait_s <= REFILL_S
    clock.now += 3 * REFILL_S
    assert guesses(attempts, "alice", "10.0.0.1") == 3


def test_other_user_names_give_an_address_no_more_guesses(attempts: Attempts) -> None:
    assert sum(guesses(attempts, f"user-{number}", "10.0.0.1", 1) for number in range(200)) == PER_ADDRESS_MAX


def test_other_addresses_are_not_affected(attempts: Attempts) -> None:
    guesses(attempts, "alice", "10.0.0.1")
    assert guesses(attempts, "bob", "10.0.0.2", 1) == 1


def test_a_user_name_is_guessed_a_few_times_from_all_addresses(attempts: Attempts) -> None:
    assert sum(guesses(attempts, "alice", f"10.0.1.{number}", 1) for number in range(200)) == PER_USER_MAX
    assert guesses(attempts, "bob", "10.0.1.7", 1) == 1


def test_guesses_from_elsewhere_do_not_keep_a_user_out_who_was_here_before(attempts: Attempts) -> None:
    first = attempts.begin("alice", "10.0.0.5")
    assert isinstance(first, Attempt)
    attempts.worked(first)
    for number in range(200):
        guesses(attempts, "alice", f"10.0.1.{number}", 1)
    assert isinstance(attempts.begin("alice", "10.0.0.9"), float)
    assert isinstance(attempts.begin("alice", "10.0.0.5"), Attempt)


def test_guesses_behind_the_same_proxy_do_not_keep_a_user_out_who_was_here_before(attempts: Attempts) -> None:
    first = attempts.begin("alice", "10.0.0.5")
    assert isinstance(first, Attempt)
    attempts.worked(first)
    guesses(attempts, "mallory", "10.0.0.5")
    assert guesses(attempts, "alice", "10.0.0.5") == PER_ADDRESS_MAX


def test_a_right_password_and_a_silent_cluster_cost_nothing(attempts: Attempts) -> None:
    for _ in range(100):
        attempt = attempts.begin("alice", "10.0.0.1")
        assert isinstance(attempt, Attempt)
        attempts.untried(attempt)
    for number in range(100):
        attempt = attempts.begin(f"user-{number}", "10.0.0.1")
        assert isinstance(attempt, Attempt)
        attempts.worked(attempt)


def test_memory_is_bounded_and_long_names_cost_no_more(attempts: Attempts) -> None:
    for number in range(KEPT_MAX + 100):
        attempts.begin("x" * 1_000 + str(number), str(ipaddress.IPv4Address(number)))
    assert len(attempts._buckets) <= KEPT_MAX


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_one_machine_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.9, 192.0.2.1", "192.0.2.1"),  # the first is what the browser wrote itself
        ("10.0.0.1", "192.0.2.1, 10.0.0.2", "192.0.2.1"),
        ("10.0.0.1", "192.0.2.1, nonsense", "10.0.0.1"),
        ("198.51.100.1", "192.0.2.1", "198.51.100.1"),  # no trusted proxy
        ("", "192.0.2.1", ""),
        ("::ffff:10.0.0.1", "192.0.2.1", "192.0.2.1"),  # a listener at [::] sees the proxy so
    ],
)
def test_only_trusted_proxies_name_the_browser(peer: str, forwarded: str, found: str) -> None:
    assert browser_address(peer, forwarded, (ipaddress.ip_network("10.0.0.0/8"),)) == found
