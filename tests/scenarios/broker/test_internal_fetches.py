"""Fetches on the internal listener: coordinators read their shards there, and nothing else."""

from __future__ import annotations

from headrace_broker.handlers.fetch import FetchStream
from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import common_pb2
from tests.worlds.solo_broker import FakeStream, SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop

REFUSED = common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED


@in_loop
async def test_a_coordinators_certificate_reads_no_topic_of_users() -> None:
    """The attack: a stolen certificate of a coordinator, whose calls have no ACLs."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.append("orders", batch(b"secret"))
        stream = FakeStream()
        handler = FetchStream(broker.context, stream, only_shards=True)  # type: ignore[arg-type]
        handler.on_request(fetch(1, "orders"))
        (answer,) = await stream.wait_sent(1)
        assert [(each.error.code, each.records) for each in answer.results] == [(REFUSED, b"")]
        handler.on_request(fetch(2, SHARD_TOPICS[0]))
        (_, answer) = await stream.wait_sent(2)
        assert [each.error.code for each in answer.results] != [REFUSED]
        handler.on_closed()
