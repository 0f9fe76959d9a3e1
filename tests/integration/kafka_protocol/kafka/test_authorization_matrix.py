"""The same requests of the same principals to real Kafka with StandardAuthorizer and to a broker: equal answers.

The table is authorization_cases.py. A difference that is not in EXPLAINED fails the test, and so does an explanation
without a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import Message
from tests.integration.kafka_protocol.authorization_cases import (
    EXTRA_ENTRY,
    GROUP,
    PASSWORD,
    ROOT,
    TOPIC,
    TRANSACTION,
    USERS,
    cases,
    outline,
)
from tests.integration.kafka_protocol.secured_kafka import SecuredKafka
from tests.worlds.kafka_protocol import ClosedError, KafkaWire, secure_broker

NAMES = (ROOT, *USERS)
WITHIN_S = 60.0
CLOSED = "the connection was closed"

#: Requests whose answers differ for clients that may make them, and why. None concerns access.
EXPLAINED = {
    "commit in a transaction": "for an unknown member of a group, Headrace says ILLEGAL_GENERATION, and Kafka looks at "
    "the producer id first",
    "KIP-848 heartbeat None": "an unknown member of a group that has only offsets: Headrace says UNKNOWN_MEMBER_ID, "
    "Kafka GROUP_ID_NOT_FOUND",
    f"KIP-848 heartbeat {[TOPIC, 'absent']}": "as before",
}

Answers = Mapping[tuple[str, str], Any]


def broker_keys() -> dict[str, str]:
    """The keys of a broker whose listener for Kafka's clients is SASL_PLAINTEXT."""
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in NAMES)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listener.security.protocol.map": "client:SASL_SSL,internal:SSL,kafka:SASL_PLAINTEXT",
        "listener.name.kafka.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.kafka.plain.sasl.jaas.config": f"{module} required {users};",
    }


def until_done(ask: Callable[[], Message], code: Callable[[Message], int]) -> None:
    """Repeat a request until its answer has no error."""
    deadline = time.monotonic() + WITHIN_S
    while (found := code(ask())) != 0:
        assert time.monotonic() < deadline, f"error {found} for {WITHIN_S:g} s"
        time.sleep(0.05)


def prepared(bootstrap: str) -> dict[str, bytes]:
    """Create the entries, the topics, the group and the transactional id; return the topics' ids."""
    with KafkaWire(bootstrap, user=ROOT, password=PASSWORD) as root:
        entries = [
            {
                "resource_type": right.kind,
                "resource_name": right.name,
                "resource_pattern_type": right.pattern,
                "principal": f"User:{user}",
                "host": right.host,
                "operation": right.operation,
                "permission_type": right.permission,
            }
            for user, rights in USERS.items()
            for right in rights
        ]
        created = root.ask(Api.CREATE_ACLS, creations=entries)
        assert [each.error_message for each in created.results if each.error_code] == []
        new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        names = [TOPIC, *(f"{TOPIC}-{kind}-{user}" for kind in ("doomed", "lost") for user in NAMES)]
        made = root.ask(
            Api.CREATE_TOPICS, timeout=30_000, validate_only=False, topics=[{"name": name, **new} for name in names]
        )
        assert [each.error_message for each in made.topics if each.error_code] == []
        for kind, key in ((0, GROUP), (1, TRANSACTION)):
            until_done(
                lambda kind=kind, key=key: root.ask(Api.FIND_COORDINATOR, key_type=kind, coordinator_keys=[key]),  # type: ignore[misc]
                lambda answer: int(answer.coordinators[0].error_code),
            )
        offset = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
        until_done(
            lambda: root.ask(
                Api.OFFSET_COMMIT,
                9,
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[{"name": TOPIC, "partitions": [offset]}],
            ),
            lambda answer: int(answer.topics[0].partitions[0].error_code),
        )
        until_done(
            lambda: root.ask(
                Api.INIT_PRODUCER_ID,
                transactional_id=TRANSACTION,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            ),
            lambda answer: int(answer.error_code),
        )
        known = root.ask(Api.METADATA, topics=None, allow_auto_topic_creation=False)
        return {topic.name: topic.topic_id for topic in known.topics}


def answers(bootstrap: str) -> dict[tuple[str, str], Any]:
    """The outline of each answer, by user and case."""
    ids = prepared(bootstrap)
    found: dict[tuple[str, str], Any] = {}
    for user in NAMES:
        wire = KafkaWire(bootstrap, user=user, password=PASSWORD)
        for case in cases(user):
            try:
                found[user, case.name] = outline(wire.ask(case.api, case.version, **case.fields(ids)))
            except ClosedError:
                found[user, case.name] = CLOSED
                wire = KafkaWire(bootstrap, user=user, password=PASSWORD)
            if case.name in {"create acls", "delete acls"}:
                until_described(bootstrap, case.name == "create acls" and created(found[user, case.name]))
        with wire:
            pass
    return found


def created(answer: Any) -> bool:
    return answer != CLOSED and any(each["error_code"] == 0 for each in answer["results"])


def until_described(bootstrap: str, there: bool) -> None:
    """Wait until the server describes the entry of "create acls", or does not: Kafka's broker answers when the
    controller has decided, and may apply it later."""
    with KafkaWire(bootstrap, user=ROOT, password=PASSWORD) as root:
        until_done(
            lambda: root.ask(Api.DESCRIBE_ACLS, **EXTRA_ENTRY),
            lambda answer: 0 if bool(answer.resources) == there else 1,
        )


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    kafka = SecuredKafka(tmp_path_factory.mktemp("kafka"), NAMES, PASSWORD)
    with kafka:
        yield answers(kafka.secured)


@pytest.fixture(scope="module")
def ours() -> Iterator[Answers]:
    with secure_broker(broker_keys(), has_tokens=False) as cluster:
        yield answers(cluster.kafka_bootstrap_servers)


def differences(theirs: Answers, ours: Answers) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for (user, case), answer in theirs.items():
        if ours[user, case] != answer:
            found.setdefault(case, []).append(f"{user}: Kafka {answer}, ours {ours[user, case]}")
    return found


def test_a_broker_answers_as_kafka_does(theirs: Answers, ours: Answers) -> None:
    assert len(theirs) >= 1_100
    assert theirs.keys() == ours.keys()
    found = differences(theirs, ours)
    assert {case: each for case, each in found.items() if case not in EXPLAINED} == {}
    assert found.keys() == EXPLAINED.keys(), "an explanation is not needed any more"


def test_the_table_tells_clients_apart(theirs: Answers) -> None:
    """Every request has an answer that some principal gets and another one does not; otherwise it checks nothing."""
    by_case: dict[str, set[str]] = {}
    for (_, case), answer in theirs.items():
        by_case.setdefault(case, set()).add(repr(answer))
    same = {case for case, seen in by_case.items() if len(seen) == 1}
    assert same == {
        "describe no tokens",
        "produce in a transaction",  # only those without the right ask
        "create a token",
        "renew a token",
        "expire a token",
        "handshake again",
        "authenticate again",
    }
