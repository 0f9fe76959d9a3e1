"""Cancel each call of an AsyncAdmin at each of its suspension points: the next call has the outcome that it would have
had, and no task is left. (The scripted nodes refuse some methods: the outcome is then their error.)"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headrace import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ConfigResource,
    TopicPartition,
    TransactionToken,
)
from headrace.acl_models import AclBinding, AclBindingFilter, AclOperation, ResourceType
from headrace.cluster_models import TopicPartitionReplica
from headrace.errors import ClosedError
from headrace.quota_models import QuotaEntity
from headrace.scram_models import ScramMechanism, UserScramCredentialDeletion
from headrace_core.sinks import SinkTransaction, sink_id
from headrace_protos.v1 import transactions_pb2
from tests.worlds import coordinators_standin
from tests.worlds.cut_points import LEAST, RUNTIMES, Cancelled, cut_everywhere, cuts, run
from tests.worlds.waiting import until_async

__all__ = ["cuts"]
pytestmark = pytest.mark.usefixtures("cuts")

TP = TopicPartition("orders", 0)
TOPIC = ConfigResource("topic", "orders")
USER = QuotaEntity(user="ann")
ACL = AclBinding(
    resource_type=ResourceType.TOPIC, resource_name="orders", principal="User:ann", operation=AclOperation.READ
)
SINK = sink_id("query", "t")
TOKEN = TransactionToken(str(SinkTransaction(SINK, 0, 0, 0, "n")), 7, 0)
_numbers = itertools.count()

WAYS: dict[str, Callable[[AsyncAdmin], Awaitable[Any]]] = {
    "create_topics": lambda admin: admin.create_topics([f"topic-{next(_numbers)}"]),
    "delete_topics": lambda admin: admin.delete_topics(["orders"]),
    "list_topics": lambda admin: admin.list_topics(),
    "describe_topics": lambda admin: admin.describe_topics(["orders"]),
    "create_partitions": lambda admin: admin.create_partitions({"orders": 9}),
    "describe_configs": lambda admin: admin.describe_configs([TOPIC]),
    "alter_configs": lambda admin: admin.alter_configs({TOPIC: {"retention.ms": "1"}}),
    "delete_records": lambda admin: admin.delete_records({TP: 1}),
    "list_offsets": lambda admin: admin.list_offsets({TP: "earliest"}),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "describe_log_dirs": lambda admin: admin.describe_log_dirs([1]),
    "alter_replica_log_dirs": lambda admin: admin.alter_replica_log_dirs({TopicPartitionReplica("orders", 0, 1): "/d"}),
    "describe_quorum": lambda admin: admin.describe_quorum(),
    "add_voter": lambda admin: admin.add_voter(4, b"d" * 16),
    "remove_voter": lambda admin: admin.remove_voter(4, b"d" * 16),
    "transfer_leadership": lambda admin: admin.transfer_leadership(),
    "describe_features": lambda admin: admin.describe_features(),
    "update_features": lambda admin: admin.update_features({"metadata.version": 1}),
    "create_acls": lambda admin: admin.create_acls([ACL]),
    "describe_acls": lambda admin: admin.describe_acls(),
    "delete_acls": lambda admin: admin.delete_acls([AclBindingFilter()]),
    "describe_user_scram_credentials": lambda admin: admin.describe_user_scram_credentials(),
    "alter_user_scram_credentials": lambda admin: admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion("ann", ScramMechanism.SCRAM_SHA_512)]
    ),
    "create_delegation_token": lambda admin: admin.create_delegation_token(),
    "renew_delegation_token": lambda admin: admin.renew_delegation_token(b"h" * 64),
    "expire_delegation_token": lambda admin: admin.expire_delegation_token(b"h" * 64),
    "describe_delegation_token": lambda admin: admin.describe_delegation_token(),
    "describe_client_quotas": lambda admin: admin.describe_client_quotas(),
    "alter_client_quotas": lambda admin: admin.alter_client_quotas({USER: {"producer_byte_rate": 1.0}}),
    "elect_leaders": lambda admin: admin.elect_leaders(),
    "alter_partition_reassignments": lambda admin: admin.alter_partition_reassignments({TP: [1]}),
    "list_partition_reassignments": lambda admin: admin.list_partition_reassignments(),
    "drain_broker": lambda admin: admin.drain_broker(1),
    "unregister_broker": lambda admin: admin.unregister_broker(1),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_groups": lambda admin: admin.describe_groups(["a"]),
    "describe_lag": lambda admin: admin.describe_lag(["a"]),
    "explain_group": lambda admin: admin.explain_group("a"),
    "list_group_offsets": lambda admin: admin.list_group_offsets("a"),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("a", {TP: 4}),
    "delete_group_offsets": lambda admin: admin.delete_group_offsets("a", [TP]),
    "remove_group_members": lambda admin: admin.remove_group_members("b", ["m"]),
    "delete_groups": lambda admin: admin.delete_groups(["c"]),
    "list_transactions": lambda admin: admin.list_transactions(),
    "describe_transactions": lambda admin: admin.describe_transactions(["a"]),
    "describe_producers": lambda admin: admin.describe_producers([TP]),
    "abort_transaction": lambda admin: admin.abort_transaction("a"),
    "abort_hanging_transaction": lambda admin: admin.abort_hanging_transaction(TP, producer_id=7, start_offset=0),
    "complete_transaction": lambda admin: admin.complete_transaction(TOKEN, commit=True),
    "describe_sink": lambda admin: admin.describe_sink(SINK),
    "commit_sink_batch": lambda admin: admin.commit_sink_batch(SINK, 0, [TOKEN]),
    "abort_sink_batch": lambda admin: admin.abort_sink_batch(SINK, 0, 0),
}


@pytest.fixture
def world() -> Iterator[Any]:
    with coordinators_standin.serving_transactions() as made:
        made.committed = {"a": {("orders", 0): (3, "")}}
        made.add("a", transactions_pb2.TRANSACTION_STATE_COMPLETE_COMMIT, producer_id=7)
        yield made


def opened(world: Any) -> AsyncAdmin:
    return AsyncAdmin(bootstrap_servers=world.coordinators[0].address, retry_backoff_ms=5)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", WAYS)
def test_cut_admin_call_has_its_outcome_the_next_time(world: Any, runtime: str, way: str) -> None:
    call = WAYS[way]

    async def outcome_of(admin: AsyncAdmin) -> Any:
        try:
            return await call(admin)
        except Exception as error:  # noqa: BLE001 - compared with the others
            return type(error)

    async def main() -> None:
        points = 0
        async with opened(world) as known:
            await outcome_of(known)
            expected = await outcome_of(known)
            loop = known._calls.engine.io.loop
            tasks = len(asyncio.all_tasks(loop))
            async for outcome in cut_everywhere(runtime, lambda: call(known)):
                points += outcome is Cancelled
                if way != "create_topics":
                    assert outcome in (Cancelled, expected) or type(outcome) is expected, outcome
                    assert await outcome_of(known) == expected
                await until_async(lambda: len(asyncio.all_tasks(loop)) <= tasks)
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ["close", "__aexit__"])
def test_cut_close_of_an_admin_leaves_no_connection(world: Any, runtime: str, way: str) -> None:
    async def main() -> None:
        points = 0
        admin = opened(world)
        await admin.describe_cluster()
        async for outcome in cut_everywhere(runtime, lambda: getattr(admin, way)()):  # noqa: B023
            assert outcome in (None, Cancelled), outcome
            points += outcome is Cancelled
            await admin.close()
            engine = admin._calls.engine
            await until_async(lambda: not engine._keepers and not engine.connections._pool._by_address)  # noqa: B023
            with pytest.raises(ClosedError):
                await admin.describe_cluster()
            admin = opened(world)
            await admin.describe_cluster()
        await admin.close()
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", [AsyncAdmin, AsyncConsumer, AsyncProducer])
def test_cut_start_of_a_client_is_repeated(world: Any, runtime: str, kind: Any) -> None:
    async def main() -> None:
        points = 0
        client = kind(bootstrap_servers=world.coordinators[0].address, retry_backoff_ms=5)
        async for outcome in cut_everywhere(runtime, lambda: client.start()):  # noqa: B023
            assert outcome in (None, Cancelled), outcome
            points += outcome is Cancelled
            await client.start()
            await client.close()
            with pytest.raises(ClosedError):
                await client.start()
            client = kind(bootstrap_servers=world.coordinators[0].address, retry_backoff_ms=5)
        await client.close()
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


def test_every_method_of_the_admin_is_cut() -> None:
    public = {name for name in dir(AsyncAdmin) if not name.startswith("_")} - {"from_properties"}
    # describe_node asks one address once, without the engine
    assert public == WAYS.keys() | {"start", "close", "describe_node"}
