"""max.connections.per.ip and its overrides (KIP-308), for the listeners of gRPC, of Kafka's protocol and of HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.config.definition import INT_MAX
from headrace_core.config.server_keys import SERVER
from headrace_core.connections import OVERRIDES, PER_IP, AddressCounts, AddressLimits
from headrace_core.errors import InvalidConfigError, ServerBusyError
from headrace_core.rpc.server import BusyConnections, _counted


def limits(per_ip: int = INT_MAX, overrides: str = "") -> AddressLimits:
    return AddressLimits.of({PER_IP: per_ip, OVERRIDES: overrides})


def test_kafkas_defaults_limit_nothing() -> None:
    assert (SERVER.key(PER_IP).default, SERVER.key(OVERRIDES).default) == (2_147_483_647, "")
    assert not limits().are_set


@pytest.mark.parametrize(
    ("overrides", "host", "most"),
    [
        ("10.0.0.1:5", "10.0.0.1", 5),
        ("10.0.0.1:5, 10.0.0.2:0", "10.0.0.2", 0),
        ("10.0.0.1:5", "10.0.0.3", 7),
        ("::1:5", "::1", 5),
        ("[2001:DB8::1]:5", "2001:db8::1", 5),
        ("::ffff:10.0.0.1:5", "10.0.0.1", 5),
        ("localhost:5", "127.0.0.1", 5),
        (" ,10.0.0.1:5,", "10.0.0.1", 5),
    ],
)
def test_an_override_replaces_the_limit_of_its_address(overrides: str, host: str, most: int) -> None:
    assert limits(7, overrides).most(host) == most


@pytest.mark.parametrize("overrides", ["10.0.0.1", "10.0.0.1:", ":5", "10.0.0.1:-1", "10.0.0.1:x", "no.such.invalid:5"])
def test_a_wrong_override_names_the_key_and_the_item(overrides: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{OVERRIDES}={overrides}"):
        limits(7, overrides)


def test_zero_needs_overrides() -> None:
    with pytest.raises(InvalidConfigError, match=f"{PER_IP}=0 refuses every connection"):
        limits(0)
    assert limits(0, "10.0.0.1:1").most("10.0.0.2") == 0


def test_an_address_counts_once_in_all_its_forms() -> None:
    counts = AddressCounts(limits(2))
    assert [counts.begin(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2")] == [
        True,
        True,
        False,
        True,
    ]
    counts.end("::ffff:10.0.0.1")
    assert counts.begin("10.0.0.1")


def test_refused_addresses_leave_nothing_in_memory() -> None:
    counts = AddressCounts(limits(0, "10.0.0.1:1"))
    assert not any(counts.begin(f"10.1.{number // 256}.{number % 256}") for number in range(1_000))
    assert not counts._open


def peer(host: str, port: int) -> str:
    return f"ipv4:{host}:{port}"


def test_a_connection_of_grpc_counts_while_it_has_calls() -> None:
    busy = BusyConnections(limits(2))
    one, again, other = busy.call(peer("10.0.0.1", 1)), busy.call(peer("10.0.0.1", 1)), busy.call(peer("10.0.0.1", 2))
    with one, again, other:
        with pytest.raises(ServerBusyError, match=r"10.0.0.1 has 2 connections with calls in progress"), _third(busy):
            pass
        with busy.call(peer("10.0.0.1", 2)), busy.call(peer("10.0.0.2", 3)), busy.call("unix:"):
            pass
    with _third(busy):
        assert len(busy._calls) == 1
    assert not busy._calls
    assert not busy._addresses._open


def _third(busy: BusyConnections) -> Any:
    return busy.call(peer("10.0.0.1", 3))


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_a_health_check_is_answered_above_the_limit(method: str) -> None:
    """A probe that is refused makes Kubernetes restart the node."""

    async def guarded(request: Any, context: Any) -> str:
        return "SERVING"

    counted = _counted(guarded, f"/grpc.health.v1.Health/{method}", BusyConnections(limits(0, "10.0.0.1:1")))
    context = SimpleNamespace(peer=lambda: peer("10.0.0.2", 1))
    assert asyncio.run(counted("", context)) == "SERVING"
