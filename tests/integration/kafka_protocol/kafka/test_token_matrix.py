"""The four requests about delegation tokens, of every kind of client, to a broker and to real Kafka that both have
tokens: equal answers on the wire."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_kafka.wire.apis import Api
from tests.integration.kafka_protocol.secured_kafka import SecuredKafka
from tests.worlds.kafka_protocol import KafkaWire
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(300)
PASSWORD, KEY = "secret", "a secret of all nodes"
#: The clients besides root, who is a super user, and their rights: operation, resource type, name.
RIGHTS = {
    "stranger": [],
    "teller": [(Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:zoe")],
    "looker": [(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "*")],
    "maker": [(Operation.CREATE_TOKENS, ResourceType.USER, "User:zoe")],
    "anyone": [(Operation.ALL, ResourceType.USER, "*")],
    "operator": [(Operation.ALL, ResourceType.CLUSTER, "kafka-cluster")],
    "renewer": [],
    "zoe": [],
}
NAMES = ("root", *RIGHTS)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
PERIODS = (-(2**63), -1, 0, 5_000, HOUR_MS, DAY_MS + 1, 2**63 - 1)

Connect = Callable[[str], KafkaWire]
Answers = dict[str, Any]


def user(name: str) -> dict[str, str]:
    return {"principal_type": "User", "principal_name": name}


def created(wire: KafkaWire, owner: str = "", lifetime_ms: int = -1, *renewers: dict[str, str]) -> Any:
    return wire.ask(
        Api.CREATE_DELEGATION_TOKEN,
        owner_principal_type="User" if owner else "",
        owner_principal_name=owner,
        renewers=list(renewers),
        max_lifetime=lifetime_ms,
    )


def outline(answer: Any) -> Any:
    """What of the answer to a creation must be equal."""
    names = ("principal_type", "principal_name", "token_requester_principal_type", "token_requester_principal_name")
    lives = (answer.max_timestamp - answer.issue_timestamp, answer.expiry_timestamp - answer.issue_timestamp)
    return answer.error_code, *(getattr(answer, name) for name in names), lives, bool(answer.token_id), len(answer.hmac)


def seconds_left(answer: Any) -> Any:
    """The error of a renewal or an expiry, and in how many minutes the token expires."""
    return answer.error_code, round((answer.expiry_timestamp - time.time() * 1_000) / 60_000) * (not answer.error_code)


def answers(connect: Connect) -> Answers:
    with connect("root") as root, connect("zoe") as zoe, connect("maker") as maker:
        _allow(root)
        until(lambda: created(maker, "zoe", HOUR_MS).error_code == 0, "the entries apply")
        first, second = created(zoe, "", -1, user("renewer")), created(maker, "zoe", -1, user("zoe"))
        tokens = {first.token_id: "first", second.token_id: "second"}
        until(lambda: tokens.keys() <= set(_described(root, None)), "the node that describes has both tokens")
        found: Answers = {}
        for name in NAMES:
            with connect(name) as wire:
                found |= {f"{name}: {case}": answer for case, answer in _asked(wire, name, first.hmac, tokens)}
        for name in NAMES:  # these remove the tokens
            with connect(name) as wire:
                for token, label in ((first, "first"), (second, "second")):
                    removed = _removed(wire, token.hmac)
                    found[f"{name}: remove {label}"] = removed
                    if not removed:  # Kafka's controller finds a token until its own cache has the removal
                        until(partial(_removed, wire, token.hmac), "the token is gone")
    return found


def _removed(wire: KafkaWire, hmac: bytes) -> int:
    """Ask for the removal of a token, and return the error number."""
    return int(wire.ask(Api.EXPIRE_DELEGATION_TOKEN, hmac=hmac, expiry_time_period=-1).error_code)


def _asked(wire: KafkaWire, name: str, hmac: bytes, tokens: dict[str, str]) -> Iterator[tuple[str, Any]]:
    asked_for = ("zoe", "ghost", "renewer", "maker")
    for owners in (None, [], [user("zoe"), user("ghost")], *([user(each)] for each in asked_for)):
        shown = _described(wire, owners)
        yield f"describe {owners}", sorted(label for token_id, label in tokens.items() if token_id in shown)
    for token_id, label in tokens.items():
        yield f"a description of {label}", _described(wire, None).get(token_id)
    for lifetime_ms in PERIODS:
        yield f"create for {lifetime_ms} ms", outline(created(wire, "", lifetime_ms))
    for owner in ("", "zoe", "ghost", name):
        for renewers in ((), (user("renewer"),), (user("renewer"), {"principal_type": "Group", "principal_name": "x"})):
            yield f"create of {owner!r} with {renewers}", outline(created(wire, owner, -1, *renewers))
    for period_ms in PERIODS:
        for which in (hmac, b"none", b""):
            renewed = wire.ask(Api.RENEW_DELEGATION_TOKEN, hmac=which, renew_period=period_ms)
            yield f"renew {which == hmac} {which == b''} by {period_ms} ms", seconds_left(renewed)
            if which != hmac or period_ms >= HOUR_MS:  # the others end the token
                ended = wire.ask(Api.EXPIRE_DELEGATION_TOKEN, hmac=which, expiry_time_period=period_ms)
                yield f"expire {which == hmac} {which == b''} in {period_ms} ms", seconds_left(ended)


def _described(wire: KafkaWire, owners: list[dict[str, str]] | None) -> dict[str, Any]:
    answer = wire.ask(Api.DESCRIBE_DELEGATION_TOKEN, owners=owners)
    assert answer.error_code == 0, answer
    names = ("principal_name", "token_requester_principal_name", "principal_type", "token_requester_principal_type")
    return {
        each.token_id: (
            *(getattr(each, name) for name in names),
            [(renewer.principal_type, renewer.principal_name) for renewer in each.renewers],
            each.max_timestamp - each.issue_timestamp,
            len(each.hmac),
        )
        for each in answer.tokens
    }


def _allow(root: KafkaWire) -> None:
    entries = [
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": PatternType.LITERAL,
            "principal": f"User:{who}",
            "host": "*",
            "operation": operation,
            "permission_type": Permission.ALLOW,
        }
        for who, rights in RIGHTS.items()
        for operation, kind, name in rights
    ]
    made = root.ask(Api.CREATE_ACLS, creations=entries)
    assert [each.error_message for each in made.results if each.error_code] == []


@pytest.fixture(scope="module")
def ours() -> Iterator[Answers]:
    known = " ".join(f'user_{name}="{PASSWORD}"' for name in NAMES)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = {
        "super.users": "User:root;User:admin",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.kafka.plain.sasl.jaas.config": f"{module} required {known};",
        "delegation.token.secret.key": KEY,
    }
    few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 0, "kafka": True, "mode": "inprocess"}
    with LocalCluster(**few, secure=True, config=config) as cluster:
        tls = ssl.create_default_context(cafile=str(cluster.directory / "security" / "ca.pem"))
        bootstrap = cluster.kafka_bootstrap_servers
        yield answers(lambda name: KafkaWire(bootstrap, user=name, password=PASSWORD, tls=tls))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    directory: Path = tmp_path_factory.mktemp("kafka")
    kafka = SecuredKafka(directory, NAMES, PASSWORD, delegation_token_secret_key=KEY)
    with kafka:
        yield answers(lambda name: KafkaWire(kafka.secured, user=name, password=PASSWORD))


def test_a_broker_answers_as_kafka_does(theirs: Answers, ours: Answers) -> None:
    assert theirs.keys() == ours.keys()
    assert len(theirs) >= 500
    assert {case: (each, ours[case]) for case, each in theirs.items() if each != ours[case]} == {}


def test_the_table_tells_clients_apart(theirs: Answers) -> None:
    errors = {each if isinstance(each, int) else each[0] for case, each in theirs.items() if "descri" not in case}
    #: No error; not allowed by the owner; an expired token is not found; no right; a principal that is no user.
    assert errors >= {0, 62, 63, 65, 67}
