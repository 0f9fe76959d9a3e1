"""Delegation tokens: the controllers' decisions, and the requesters that are believed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_controller.cluster import tokens
from headrace_controller.cluster.requests import (
    CreateToken,
    ExpireToken,
    FeatureUpdate,
    RemoveExpiredTokens,
    RenewToken,
    UpdateFeatures,
    UpgradeType,
)
from headrace_controller.handlers.security import SecurityHandler
from headrace_controller.handlers.tokens import Tokens
from headrace_core.clock import SystemClock
from headrace_core.errors import (
    DelegationTokenAuthDisabledError,
    DelegationTokenAuthorizationFailedError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    DelegationTokenRequestNotAllowedError,
    InvalidPrincipalTypeError,
    InvalidRequestError,
    PolicyViolationError,
    UnsupportedVersionError,
)
from headrace_core.metadata import METADATA_VERSION_FEATURE, MetadataImage
from headrace_core.metadata.records import DelegationTokenRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.security import token_calls
from headrace_core.security.access import Access, Authorization, set_access
from headrace_core.security.authorizer import Authorizer
from headrace_core.security.caller import Caller, set_caller
from headrace_core.security.principal import USER, Principal
from headrace_protos.v1 import security_pb2
from tests.worlds.cluster_world import ClusterWorld

METHODS = [each.name for each in security_pb2.DESCRIPTOR.services_by_name["Security"].methods]
NOW, DAY, WEEK = 1_000_000, 86_400_000, 604_800_000
ANN, BOB, EVE = "User:ann", "User:bob", "User:eve"


def create(world: ClusterWorld, token_id: str = "t", **fields: Any) -> DelegationTokenRecord:
    values = {"owner": ANN, "requester": ANN, "renewers": (BOB,), "lifetime_ms": -1, "at_ms": NOW} | fields
    made: DelegationTokenRecord = world.ask(CreateToken(token_id, **values))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("lifetime_ms", "expires_ms", "ends_ms"),
    [
        (-1, DAY, WEEK),
        (0, DAY, WEEK),
        (1, 1, 1),
        (DAY + 1, DAY, DAY + 1),
        (WEEK + 1, DAY, WEEK),
        (2**63 - 1, DAY, WEEK),
    ],
)
def test_a_token_lives_no_longer_than_the_settings_allow(lifetime_ms: int, expires_ms: int, ends_ms: int) -> None:
    world = ClusterWorld()
    made = create(world, lifetime_ms=lifetime_ms)
    assert (made.issued_at_ms, made.expires_at_ms - NOW, made.max_lifetime_at_ms - NOW) == (NOW, expires_ms, ends_ms)
    assert world.image.security.tokens["t"] == made


def test_owner_and_renewers_move_the_expiry_up_to_the_end_of_the_life() -> None:
    world = ClusterWorld()
    made = create(world)
    assert world.ask(RenewToken("t", BOB, 5, NOW)) == NOW + 5
    assert world.ask(RenewToken("t", ANN, -1, NOW + 5)) == NOW + 5 + DAY
    assert world.ask(RenewToken("t", ANN, 2**63 - 1, NOW + 5)) == NOW + 5 + DAY, "at most the default period"
    assert world.ask(RenewToken("t", ANN, 0, NOW + 6)) == NOW + 6 + DAY, "0 is the default, as in Kafka"
    late = NOW
    while late + DAY < made.max_lifetime_at_ms:
        late = world.ask(RenewToken("t", ANN, -1, late + DAY - 1)) - DAY
    assert world.ask(RenewToken("t", ANN, -1, late + DAY - 1)) == made.max_lifetime_at_ms
    assert world.ask(ExpireToken("t", BOB, 2**62, made.max_lifetime_at_ms)) == made.max_lifetime_at_ms
    assert world.ask(ExpireToken("t", BOB, 7, NOW)) == NOW + 7


def test_an_expired_token_is_not_renewed_and_is_removed() -> None:
    world = ClusterWorld()
    made = create(world)
    create(world, "other", lifetime_ms=-1, at_ms=NOW + 10)
    ends = made.expires_at_ms
    assert world.ask(ExpireToken("t", ANN, 0, ends)) == ends, "at its expiry it still lives"
    for request in (RenewToken("t", ANN, 5, ends + 1), ExpireToken("t", ANN, 5, ends + 1)):
        with pytest.raises(DelegationTokenExpiredError):
            world.ask(request)
    assert world.ask(RemoveExpiredTokens(ends)) == 0
    assert tokens.has_expired(world.image, ends + 1)
    assert world.ask(RemoveExpiredTokens(ends + 1)) == 1
    assert list(world.image.security.tokens) == ["other"]
    assert not tokens.has_expired(world.image, ends + 1)
    for request in (RenewToken("t", ANN, 5, NOW), ExpireToken("t", ANN, -1, NOW), RenewToken("", ANN, 5, NOW)):
        with pytest.raises(DelegationTokenNotFoundError):
            world.ask(request)


def test_only_owner_and_renewers_may_change_a_token() -> None:
    world = ClusterWorld()
    create(world, requester=EVE)  # the requester does not own it
    before = world.image.security.tokens["t"]
    for request in (RenewToken("t", EVE, 5, NOW), ExpireToken("t", EVE, -1, NOW), ExpireToken("t", "User:", 5, NOW)):
        with pytest.raises(DelegationTokenOwnerMismatchError):
            world.ask(request)
    assert world.image.security.tokens["t"] == before
    world.ask(ExpireToken("t", BOB, -1, NOW))
    assert not world.image.security.tokens


def test_what_a_token_may_not_be() -> None:
    world = ClusterWorld(metadata_max_records_per_request=3)
    for principals in ({"owner": "Group:x"}, {"owner": "ann"}, {"renewers": (BOB, "")}, {"renewers": ("Node:b:1",)}):
        with pytest.raises(InvalidPrincipalTypeError):
            create(world, **principals)
    with pytest.raises(InvalidRequestError, match="renewers"):
        create(world, renewers=tuple(f"User:{number}" for number in range(tokens.RENEWERS_MAX + 1)))
    with pytest.raises(InvalidRequestError, match="4096 are allowed"):
        create(world, renewers=tuple(f"User:{number}{'é' * 60}" for number in range(40)))
    with pytest.raises(InvalidPrincipalTypeError):
        create(world, renewers=("User:a\nb",))
    assert create(world, renewers=(BOB, BOB)).renewers == (BOB,)
    for number in range(5):
        create(world, f"t{number}")
    assert [world.ask(RemoveExpiredTokens(NOW + WEEK)) for _ in range(3)] == [3, 3, 0]


def test_there_is_a_limit_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 2)
    world = ClusterWorld()
    create(world, "a")
    create(world, "b")
    with pytest.raises(PolicyViolationError, match="at most 2"):
        create(world, "c")


def test_one_user_cannot_use_up_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_OF_REQUESTER_MAX", 2)
    world = ClusterWorld()
    create(world, "a", requester=EVE)
    create(world, "b", requester=EVE, owner=BOB)
    with pytest.raises(PolicyViolationError, match="User:eve has requested 2"):
        create(world, "c", requester=EVE)
    create(world, "c", requester=ANN, owner=EVE)
    world.ask(ExpireToken("a", ANN, -1, NOW))
    create(world, "d", requester=EVE)


def test_no_token_id_looks_like_an_option_of_a_command_line() -> None:
    """One of 64 random ids began with "-", and ``headrace tokens renew`` took it for an option."""

    class Driver:
        async def ask(self, asked: CreateToken) -> Any:
            ids.append(asked.token_id)
            made = DelegationTokenRecord(asked.token_id, ANN, ANN, (), 0, 1, 2)
            return SimpleNamespace(reply=made, metadata_offset=1)

    async def run() -> None:
        handler = Tokens(Driver(), "key", SystemClock(), check_interval_s=1)  # type: ignore[arg-type]
        for _ in range(1_000):
            await handler.create(security_pb2.CreateDelegationTokenRequest(requester=ANN))

    ids: list[str] = []
    asyncio.run(run())
    assert len(set(ids)) == 1_000
    assert not [each for each in ids if each.startswith("-")]


def test_an_old_metadata_version_has_no_tokens() -> None:
    world = ClusterWorld()
    world.ask(UpdateFeatures((FeatureUpdate(METADATA_VERSION_FEATURE, 2, UpgradeType.SAFE_DOWNGRADE),)))
    with pytest.raises(UnsupportedVersionError, match="headrace features upgrade"):
        create(world)


# -- who asks ----------------------------------------------------------------------------------------------------------


def _asked(request: Any, caller: Caller, access: Access | None = None) -> Any:
    """The request as the node that ``caller`` calls forwards it."""

    async def run() -> Any:
        set_caller(caller)
        set_access(access or Access(caller, None))
        sent: list[Any] = []

        async def send(asked: Any) -> Any:
            sent.append(asked)
            return security_pb2.CreateDelegationTokenResponse()

        await token_calls.call("CreateDelegationToken", request, send)
        return sent[0]

    return asyncio.run(run())


def _client(name: str, **more: Any) -> Caller:
    return Caller(Principal(USER, name), "127.0.0.1", listener="client", **more)


def test_a_client_is_not_believed_who_it_is() -> None:
    forged = security_pb2.CreateDelegationTokenRequest(requester="User:root", renewers=["User:x"])
    asked = _asked(forged, _client("eve"))
    assert (asked.requester, list(asked.renewers)) == (EVE, ["User:x"])
    assert forged.requester == "User:root"


def test_a_node_says_who_asks() -> None:
    node = Caller(Principal("Node", "broker:1"), listener="internal", role="broker", node_id=1)
    assert _asked(security_pb2.CreateDelegationTokenRequest(requester=ANN), node).requester == ANN


@pytest.mark.parametrize("caller", [Caller(), _client("ANONYMOUS"), _client("ann", token_id="t")])
def test_who_may_not_ask(caller: Caller) -> None:
    with pytest.raises(DelegationTokenRequestNotAllowedError):
        _asked(security_pb2.CreateDelegationTokenRequest(), caller)


def test_another_owner_needs_a_right() -> None:
    access = Access(_client("eve"), Authorization(Authorizer()))
    with pytest.raises(DelegationTokenAuthorizationFailedError):
        _asked(security_pb2.CreateDelegationTokenRequest(owner=ANN), _client("eve"), access)
    assert _asked(security_pb2.CreateDelegationTokenRequest(owner=EVE), _client("eve"), access).owner == EVE


def _handled(name: str, request: Any, caller: Caller, secret: str | None = "key") -> Any:
    nothing: Any = None  # no driver: a refusal needs no leader and no image

    async def run() -> Any:
        set_caller(caller)
        handler = SecurityHandler(nothing, Tokens(nothing, secret, nothing, check_interval_s=1))
        handler._check_leads = lambda: None  # type: ignore[method-assign]
        nothing_led = type("Driver", (), {"image": None})()
        handler._driver = nothing_led
        return await getattr(handler, name)(request, None)

    return asyncio.run(run())


@pytest.mark.parametrize("name", sorted(token_calls.TOKEN_CALLS))
def test_an_internal_listener_without_certificates_believes_no_caller(name: str) -> None:
    for caller in (Caller(), Caller(listener="internal")):
        with pytest.raises(DelegationTokenRequestNotAllowedError, match="internal listeners with TLS"):
            _handled(name, None, caller)


@pytest.mark.parametrize(
    "request_",
    [
        security_pb2.CreateDelegationTokenRequest(requester=ANN),
        security_pb2.RenewDelegationTokenRequest(requester=ANN),
        security_pb2.ExpireDelegationTokenRequest(requester=ANN),
        security_pb2.DescribeDelegationTokensRequest(),
    ],
)
def test_without_a_secret_a_cluster_has_no_tokens(request_: Any) -> None:
    name = type(request_).__name__.removesuffix("Request")
    with pytest.raises(DelegationTokenAuthDisabledError, match=r"delegation\.token\.secret\.key"):
        _handled(name, request_, _client("ann"), secret=None)


@pytest.mark.parametrize(
    ("owners", "described"),
    [
        ([], ["made", "own", "renewed"]),
        ([ANN], ["made", "own"]),
        ([EVE], ["made", "renewed"]),
        (["User:zoe"], ["renewed"]),
        (["User:zoe", ANN], ["made", "own", "renewed"]),
        (["User:ghost"], []),
    ],
)
def test_a_description_has_the_tokens_that_the_users_own_asked_for_or_may_renew(
    owners: list[str], described: list[str]
) -> None:
    """As in Kafka: TokenInformation.ownerOrRenewer."""
    tokens = {
        "own": DelegationTokenRecord("own", ANN, ANN, (), 0, 1, 2),
        "made": DelegationTokenRecord("made", ANN, EVE, (), 0, 1, 2),
        "renewed": DelegationTokenRecord("renewed", "User:zoe", "User:zoe", (EVE,), 0, 1, 2),
    }

    class Driver:
        image = MetadataImage(security=SecurityImage(tokens=tokens))

        async def barrier(self) -> None:
            pass

    driver: Any = Driver()
    clock: Any = None
    handler = Tokens(driver, "key", clock, check_interval_s=1)
    answer = asyncio.run(handler.describe(security_pb2.DescribeDelegationTokensRequest(owners=owners)))
    assert sorted(each.token_id for each in answer.tokens) == described


def test_a_request_that_does_not_say_who_asks_is_refused() -> None:
    node = Caller(Principal("Node", "broker:1"), listener="internal", role="broker", node_id=1)
    with pytest.raises(DelegationTokenRequestNotAllowedError, match="does not name its client"):
        _handled("CreateDelegationToken", security_pb2.CreateDelegationTokenRequest(owner=ANN), node)


def test_every_call_of_the_service_has_a_method() -> None:
    assert [each for each in METHODS if each not in vars(SecurityHandler)] == []
    assert set(METHODS) >= token_calls.TOKEN_CALLS
