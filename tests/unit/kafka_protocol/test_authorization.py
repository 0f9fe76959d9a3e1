"""Clients without rights: the broker refuses their requests itself, with Kafka's error codes, and asks nobody.

The requests are those of tests/integration/kafka_protocol/authorization_cases.py, where real Kafka judges all
principals.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.records import AclRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorization import NodeAuthorization
from headrace_core.security.principal import Principal
from headrace_core.security.protocols import SecurityProtocol
from headrace_kafka.cluster import Cluster
from headrace_kafka.connection import Connection
from headrace_kafka.connections import Connections
from headrace_kafka.handlers.table import FAST, HANDLERS
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.schema import NO_UUID, Message
from tests.integration.kafka_protocol.authorization_cases import TOPIC, Case, cases, codes, outline
from tests.unit.kafka_protocol.test_metadata_handlers import broker, partition, topic
from tests.worlds.kafka_protocol import MemoryTransport, read_answer, request_frame
from tests.worlds.waiting import until_async

USER = "stranger"
TOPICS = [topic(name, partition(1, (1, 2))) for name in (TOPIC, f"{TOPIC}-doomed-{USER}", f"{TOPIC}-lost-{USER}")]
#: Cases that nodes decide: every client that has authenticated may ask for its own tokens.
OF_NODES = {"create a token", "describe no tokens", "renew a token", "expire a token"}
REFUSALS = {29, 30, 31, 53, 65}
#: Cases whose answers hide what the client may not see, and have no error.
HIDDEN = {
    "metadata of all",
    "metadata v0",
    "metadata v10",
    "describe cluster",
    "topic partitions of all",
    "list groups",
    "list transactions",
    "handshake again",
    "authenticate again",
}


def image_of(*acls: AclRecord) -> MetadataImage:
    return MetadataImage(
        next_offset=9,
        cluster_id="cluster",
        brokers={each: broker(each) for each in (1, 2)},
        topics={each.topic_id: each for each in TOPICS},
        topic_ids={each.name: each.topic_id for each in TOPICS},
        security=SecurityImage(acls={each.acl_id: each for each in acls}),
    )


class Nodes:
    """In place of the upstream. ``called``: the calls to nodes."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*values: Any) -> Any:
            self.called.append(next(str(value) for value in values if isinstance(value, str) and value[0].isupper()))
            raise AssertionError(f"a node was called: {name}")

        return call


class World:
    def __init__(self, image: MetadataImage) -> None:
        self.state = MetadataState()
        self.state.advance(image, MetadataDelta(0, image.next_offset))
        authorization = NodeAuthorization(
            lambda: self.state.image.security, frozenset({"User:root"}), allow_everyone=False
        )
        cluster = Cluster(self.state, authorization)
        self.nodes = Nodes()
        self.connections = Connections(KafkaSettings(has_tokens=True), cluster, cast("Any", self.nodes), HANDLERS, FAST)

    async def ask(self, case: Case, user: str = USER) -> Message:
        transport = MemoryTransport()
        connection = Connection(self.connections, "kafka")
        connection.client.principal = Principal("User", user)
        connection.client.protocol = SecurityProtocol.SASL_PLAINTEXT
        transport.connect(connection)
        version = VERSIONS[case.api].high if case.version is None else case.version
        ids = {each.name: each.topic_id for each in TOPICS}
        connection.data_received(bytes(request_frame(case.api, version, **case.fields(ids))))
        await until_async(lambda: len(transport.written) >= 4 or transport.state != "open")
        assert transport.written, "the connection was closed"
        return read_answer(case.api, version, transport.client_reads()[4:])[1]


@pytest.mark.parametrize("case", [pytest.param(each, id=each.name) for each in cases(USER)])
def test_a_client_without_rights_is_refused_by_the_broker(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World(image_of())
        if case.name in OF_NODES:
            with pytest.raises(AssertionError, match="the connection was closed"):
                await world.ask(case)
            assert len(world.nodes.called) == 1
            return
        found = set(codes(outline(await world.ask(case))))
        assert world.nodes.called == []
        if case.name in HIDDEN:
            assert found <= {0, 34}
        else:
            assert found & REFUSALS
            assert found <= REFUSALS | {0, 100}  # 100: an unknown topic id is no secret

    asyncio.run(scenario())


def named(name: str) -> Case:
    return next(each for each in cases(USER) if each.name == name)


def test_a_client_without_rights_learns_no_name() -> None:
    async def scenario() -> None:
        world = World(image_of())
        for name in ("metadata of all", "metadata v0", "topic partitions of all"):
            assert (await world.ask(named(name))).topics == []
        by_name = await world.ask(named("metadata by name"))
        assert [(each.error_code, each.topic_id, each.partitions) for each in by_name.topics] == [(29, NO_UUID, [])] * 2

    asyncio.run(scenario())


def test_a_changed_acl_applies_to_the_next_request() -> None:
    allowed = AclRecord(
        bytes(16),
        ResourceType.TOPIC,
        TOPIC,
        PatternType.LITERAL,
        f"User:{USER}",
        "*",
        Operation.DESCRIBE,
        Permission.ALLOW,
    )

    async def scenario() -> None:
        world = World(image_of())
        assert (await world.ask(named("metadata of all"))).topics == []
        changed = image_of(allowed)
        world.state.advance(changed, MetadataDelta(9, 10))
        (shown,) = (await world.ask(named("metadata of all"))).topics
        assert (shown.name, shown.topic_authorized_operations) == (TOPIC, 1 << Operation.DESCRIBE)
        world.state.advance(image_of(), MetadataDelta(10, 11))
        assert (await world.ask(named("metadata of all"))).topics == []

    asyncio.run(scenario())


def test_a_super_user_sees_everything() -> None:
    async def scenario() -> None:
        answer = await World(image_of()).ask(named("metadata of all"), "root")
        assert len(answer.topics) == len(TOPICS)

    asyncio.run(scenario())


def test_every_request_type_has_a_case() -> None:
    asked = {each.api for each in cases(USER)}
    assert {*HANDLERS, *FAST} - asked == {Api.API_VERSIONS}  # open to all
