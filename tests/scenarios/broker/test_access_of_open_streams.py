"""ACLs that change while a stream is open: the next request follows them, and so does a request that waits."""

from __future__ import annotations

import pytest

from headrace_core.metadata.records import AclRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.access import EVERYTHING, Access, set_access
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorization import authorization_of
from headrace_core.security.caller import Caller
from headrace_core.security.principal import Principal
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import common_pb2
from tests.worlds.solo_broker import SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop

REFUSED = common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED


def reading(*topics: str) -> SecurityImage:
    """The image in which User:alice may read these topics."""
    acls = {}
    for topic in topics:
        key = topic.encode().ljust(16)
        acls[key] = AclRecord(
            key, ResourceType.TOPIC, topic, PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
        )
    return SecurityImage(acls=acls)


@pytest.mark.parametrize("how", ["records arrive", "the time is over", "a newer request ends the wait"])
@in_loop
async def test_a_waiting_fetch_gets_no_record_after_the_right_is_removed(how: str) -> None:
    images = [reading("orders", "others")]
    keys = {"authorizer.class.name": "StandardAuthorizer"}
    alice = Caller(Principal("User", "alice"), "10.0.0.1")
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.topic("others")
        set_access(Access(alice, authorization_of(keys, lambda: images[-1])))
        consumer, answers = broker.consumer()
        set_access(EVERYTHING)
        wait_ms = 1_000 if how == "the time is over" else 60_000
        consumer.on_request(fetch(1, "orders", "others", min_bytes=150, max_wait_ms=wait_ms))
        assert not answers.sent
        if how != "records arrive":  # too few to end the wait
            await broker.append("orders", batch(b"secret"))
        images.append(reading("others"))
        if how == "records arrive":
            await broker.append("orders", batch(b"secret" * 100))
        elif how == "a newer request ends the wait":
            consumer.on_request(fetch(2, max_wait_ms=0))
        answer = (await answers.wait_sent(1))[0]
        assert not any(result.records for result in answer.results)
        assert [result.topic for result in answer.results if result.error.code == REFUSED] == ["orders"]
        consumer.on_request(fetch(3, max_wait_ms=0))  # the session goes on with the other topic
        await broker.append("others", batch(b"fine"))
        consumer.on_request(fetch(4, max_wait_ms=0))
        sent = await answers.wait_sent(3)
        assert {result.topic for each in sent[1:] for result in each.results} == {"others"}
        consumer.on_closed()
