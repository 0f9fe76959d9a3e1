"""Every parameter of every public method refuses invalid values at the call, with an error of Headrace."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import headrace
from headrace import (
    ConfigResource,
    GroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    TopicPartition,
    TopicPartitionReplica,
    TransactionToken,
    accumulator,
    arguments,
)
from headrace.acl_models import AclBinding, AclBindingFilter, AclOperation, ResourceType
from headrace.errors import BY_CODE, HeadraceError, InvalidArgumentError, InvalidTimestampError
from headrace.quota_models import QuotaEntity
from headrace.scram_models import ScramMechanism, UserScramCredentialDeletion

TP = TopicPartition("t", 0)
NAN, SURROGATE = float("nan"), "\ud800"
LONG, INT = 2**63, 2**31

#: The errors that refuse an argument.
REFUSED = tuple(
    BY_CODE[code]
    for code in (
        "INVALID_ARGUMENT",
        "INVALID_TYPE",
        "INVALID_TOPIC_EXCEPTION",
        "INVALID_GROUP_ID",
        "INVALID_TIMESTAMP",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
    )
)


class Takes:
    """A parameter with a valid value and the invalid values."""

    def __init__(self, good: Any, *bad: Any) -> None:
        self.good, self.bad = good, bad


async def coroutine(*_: Any) -> None: ...


def partitions_in(wrap: Callable[[Any], Any]) -> list[Any]:
    """Values that are no partition, each in the form that the method expects."""
    wrong = [5, "t-0", None, ("t",), ("t", -1), ("t", INT), ("t", 1.5), ("t", True), (5, 0), ("", 0), (SURROGATE, 0)]
    return [wrap(each) for each in wrong]


def keyed(value: Any) -> Callable[[Any], Any]:
    return lambda tp: {tp: value}


class IsSet:
    """An event that is set."""

    def is_set(self) -> bool:
        return True


BINDING = AclBinding(
    resource_type=ResourceType.TOPIC, resource_name="t", principal="User:u", operation=AclOperation.READ
)
NO_LIST, NO_DICT = (5, None, True), (5, "t", None, [1], True)
SECONDS = (-1, -0.001, NAN, "1", [1], True)
OFFSETS = (-1, LONG, 1.5, "1", None, True, NAN)
TIMES = (-(2**62) - 1, LONG, 1.5, "1", True)
NUMBERS = (-1, INT, LONG, 1.5, "1", True)
TEXTS = (5, b"t", ["t"], SURROGATE)

timeout = Takes(0.01, *SECONDS)
must_timeout = Takes(0.0, *SECONDS, None)
flag = Takes(True, 1, "yes", None)
topic = Takes("t", *TEXTS, None, "", "a/b", "x" * 250)
partition = Takes(TP, *partitions_in(lambda tp: tp))
partitions = Takes([TP], *partitions_in(lambda tp: [tp]), *NO_LIST)
some_partitions = Takes([TP], *partitions_in(lambda tp: [tp]), 5, True)
names = Takes(["t"], *NO_LIST, [5], [None], [SURROGATE], b"t")
group = Takes("g", 5, None, "", SURROGATE)
groups = Takes(["g", ""], 5, None, [5], [SURROGATE])  # old clients of Kafka commit under the empty id
known_group = Takes("", 5, None, SURROGATE)
broker = Takes(1, *NUMBERS, None)
callback = Takes(print, 5, "print", coroutine)
rebalanced = Takes(print, 5, "print")
token = Takes(TransactionToken("tx", 1, 0), None, 5, "", "1:2", ("tx", 1, 0), TransactionToken("", 1, 0))
tokens = Takes([token.good], None, 5, "1:2:tx", [5], ["1:2"], [token.good] * 10_001)
batch = Takes(5, -1, LONG, 1.5, "1", None, True)
directory = Takes(b"d" * 16, 5, b"short", "short", [1])
offsets_of_group = Takes(
    {TP: 5, TopicPartition("t", 1): OffsetAndMetadata(5, "m", 3)},
    *partitions_in(keyed(5)),
    *({TP: each} for each in OFFSETS),
    {TP: OffsetAndMetadata(LONG)},
    {TP: OffsetAndMetadata("1")},  # type: ignore[arg-type]
    {TP: OffsetAndMetadata(1, 5)},  # type: ignore[arg-type]
    {TP: OffsetAndMetadata(1, SURROGATE)},
    {TP: OffsetAndMetadata(1, "", INT)},
    *(each for each in NO_DICT if each is not None),
)

PRODUCER = {
    "init_transactions": {"keep_prepared": flag},
    "begin_transaction": {},
    "commit_transaction": {},
    "send_offsets": {
        "offsets": Takes({TP: 5}, *(each for each in offsets_of_group.bad), None),
        "group": Takes(GroupMetadata("g", 1, "m"), 5, None, "g", ("g", 1, "m", None), GroupMetadata("")),
    },
    "abort_transaction": {},
    "transaction": {},
    "prepare": {},
    "complete": {"token": token, "commit": flag},
    "send": {
        "topic": topic,
        # the serializer checks this value; the accumulator's tests cover the case without a serializer
        "value": Takes(b"v"),
        "key": Takes(b"k"),
        "headers": Takes([("h", b"1")], 5, True),
        "partition": Takes(0, *NUMBERS),
        "timestamp_ms": Takes(5, *TIMES),
        "on_delivery": callback,
    },
    "send_many": {
        "topic": topic,
        "values": Takes([b"v"], 5, None, True, b"v", "v"),
        "partition": Takes(0, *NUMBERS),
        "timestamp_ms": Takes(5, *TIMES),
    },
    "send_arrow": {"topic": topic, "table": Takes(None, 5, "t", [b"v"], object())},
    "flush": {"timeout": timeout},
    "partitions_for": {"topic": topic},
    "metrics": {},
    "partition_metrics": {},
    "start": {},
    "close": {"timeout": timeout},
}
PRODUCER["send_and_wait"] = {name: row for name, row in PRODUCER["send"].items() if name != "on_delivery"}

CONSUMER = {
    "subscribe": {
        "topics": Takes(["t"], 5, True, "t", b"t", [5], [SURROGATE], ["a/b"]),
        "pattern": Takes(None, 5, "", b"x", SURROGATE),
        "on_assigned": rebalanced,
        "on_revoked": rebalanced,
        "on_lost": rebalanced,
    },
    "subscription": {},
    "unsubscribe": {},
    "commit": {"offsets": offsets_of_group},
    "commit_async": {"offsets": offsets_of_group, "callback": callback},
    "committed": {"partitions": some_partitions, "timeout": timeout},
    "group_metadata": {},
    "assign": {"partitions": partitions},
    "assignment": {},
    "seek": {"partition": partition, "offset": Takes(5, *OFFSETS)},
    "seek_to_beginning": {"partitions": partition},
    "seek_to_end": {"partitions": partition},
    "seek_to_committed": {"partitions": partition, "timeout": timeout},
    "pause": {"partitions": partition},
    "resume": {"partitions": partition},
    "paused": {},
    "poll": {"timeout": must_timeout, "max_records": Takes(5, 0, -1, LONG, 1.5, "1", True)},
    "batches": {
        "timeout": Takes(0.01, *SECONDS, None, 0, 0.0),
        "max_records": Takes(5, 0, -1, LONG, 1.5, "1", True),
    },
    "fetch_arrow": {
        "timeout": must_timeout,
        "columns": Takes(["key"], 5, "key", [5], ["nothing"], ["key", "key"]),
        "include_headers": Takes(True, *(each for each in flag.bad if each is not None)),
        "max_bytes": Takes(5, 0, -1, LONG, 1.5, "1", None, True),
    },
    "position": {"partition": partition, "timeout": timeout},
    "beginning_offsets": {"partitions": partitions, "timeout": timeout},
    "end_offsets": {"partitions": partitions, "timeout": timeout},
    "offsets_for_times": {
        "timestamps_ms": Takes({TP: 5}, *partitions_in(keyed(5)), *({TP: each} for each in OFFSETS), *NO_DICT),
        "timeout": timeout,
    },
    "partitions_for": {"topic": topic, "timeout": timeout},
    "metrics": {},
    "partition_metrics": {},
    "process": {
        "handler": Takes(print, *rebalanced.bad, None),
        "concurrency": Takes(1, 0, -1, 10_001, 1.5, "1", True, None),
        "order": Takes("key", "keys", 5, None, ["key"]),
        "retries": Takes(0, -1, 1.5, "1", True, None),
        "retry_backoff": Takes(0.1, -1, "1", True, None, NAN),
        "retry_backoff_max": Takes(0.1, -1, "1", True, None, NAN),
        "dead_letters": Takes("t", *(each for each in topic.bad if each is not None)),
        "commit_interval": Takes(0.1, -1, "1", True, None, NAN),
        "stop": Takes(IsSet(), 5, "stop", True),
    },
    "start": {},
    "close": {"timeout": timeout},
}


def new_topic(**fields: Any) -> list[NewTopic]:
    return [NewTopic(**{"name": "t", **fields})]


ADMIN: dict[str, dict[str, Takes]] = {
    "create_topics": {
        "topics": Takes(
            new_topic(partitions=1, config={"retention.ms": "5"}),
            *NO_LIST,
            [5],
            *(new_topic(name=each) for each in TEXTS),
            *(new_topic(partitions=each) for each in (0, -2, INT, LONG, 1.5, "1", True)),
            *(new_topic(replication_factor=each) for each in (0, -2, INT, LONG, 1.5, "1", True)),
            *(new_topic(config=each) for each in (5, None, {5: "x"}, {SURROGATE: "x"}, {"retention.ms": SURROGATE})),
            *(new_topic(assignments=each) for each in (5, {"0": [1]}, {-1: [1]}, {INT: [1]}, {0: 1}, {0: ["1"]})),
            *(new_topic(assignments=each) for each in ({0: [-1]}, {0: [INT]}, {0: [True]})),
        ),
        "validate_only": flag,
    },
    "delete_topics": {"names": names},
    "list_topics": {"include_internal": flag},
    "describe_topics": {"names": Takes(["t"], *(each for each in names.bad if each is not None))},
    "create_partitions": {
        "counts": Takes({"t": 2}, *NO_DICT, {5: 2}, {SURROGATE: 2}, *({"t": each} for each in (INT, LONG, 1.5, "2"))),
        "validate_only": flag,
    },
    "create_acls": {
        "acls": Takes(
            [BINDING],
            *NO_LIST,
            [5],
            [replace(BINDING, operation="READ")],
            [replace(BINDING, resource_type=2)],
            [replace(BINDING, principal=SURROGATE)],
            [replace(BINDING, resource_name=5)],
        )
    },
    "describe_acls": {"acl_filter": Takes(AclBindingFilter(), 5, "t", AclBindingFilter(host=SURROGATE))},
    "delete_acls": {
        "filters": Takes([AclBindingFilter()], *NO_LIST, [5], [None], [AclBindingFilter(principal=SURROGATE)])
    },
    "describe_user_scram_credentials": {"users": Takes(["u"], 5, [5], [SURROGATE])},
    "alter_user_scram_credentials": {
        "changes": Takes([UserScramCredentialDeletion("u", ScramMechanism.SCRAM_SHA_256)], *NO_LIST, [5])
    },
    "create_delegation_token": {
        "renewers": Takes(["User:u"], 5, [5], [SURROGATE], ["u"]),
        "owner": Takes("User:u", 5, SURROGATE, "u"),
        "max_lifetime_ms": Takes(5, "5", 1.5, -2, LONG),
    },
    "renew_delegation_token": {"hmac": Takes(b"h", None, "h", b""), "period_ms": Takes(5, "5", 1.5, -2, LONG)},
    "expire_delegation_token": {"hmac": Takes(b"h", None, "h", b""), "period_ms": Takes(5, "5", 1.5, -2, LONG)},
    "describe_delegation_token": {"owners": Takes(["User:u"], 5, [5], [SURROGATE], ["u"])},
    "describe_client_quotas": {
        "user": Takes("u", 5, "", SURROGATE),
        "client_id": Takes("c", 5, "", SURROGATE),
        "ip": Takes("127.0.0.1", 5, "", SURROGATE),
        "strict": flag,
    },
    "alter_client_quotas": {
        "changes": Takes(
            {QuotaEntity(user="u"): {"producer_byte_rate": 1.0}},
            *NO_DICT,
            {5: {}},
            {QuotaEntity(): {}},
            {QuotaEntity(user="u"): 5},
            {QuotaEntity(user="u"): {5: 1.0}},
            {QuotaEntity(user="u"): {"producer_byte_rate": "1"}},
        ),
        "validate_only": flag,
    },
    "describe_configs": {
        "resources": Takes(
            [ConfigResource("topic", "t")], *NO_LIST, [5], [("topic",)], [("nothing", "t")], [("topic", SURROGATE)]
        ),
        "include_synonyms": flag,
    },
    "alter_configs": {
        "changes": Takes(
            {ConfigResource("topic", "t"): {"retention.ms": "5"}},
            *NO_DICT,
            {5: {}},
            {("nothing", "t"): {}},
            {("topic", "t"): 5},
            {("topic", "t"): {5: "x"}},
            {("topic", "t"): {"retention.ms": SURROGATE}},
            {("topic", "t"): {"retention.ms": headrace.AppendConfig(5)}},  # type: ignore[arg-type]
        ),
        "validate_only": flag,
    },
    "delete_records": {
        "before": Takes({TP: 5}, *NO_DICT, *partitions_in(keyed(5)), *({TP: each} for each in (-2, *OFFSETS[1:])))
    },
    "list_offsets": {
        "wanted": Takes({TP: "latest"}, *NO_DICT, *partitions_in(keyed(5)), *({TP: each} for each in OFFSETS)),
        "isolation_level": Takes("read_committed", 5, None, "dirty", ["read_committed"]),
    },
    "describe_cluster": {"include_fenced_brokers": flag},
    "describe_node": {"address": Takes("127.0.0.1:1", 5, None, "", "host", "host:x", SURROGATE + ":1")},
    "describe_log_dirs": {
        "brokers": Takes([1], 5, True, "1", [-1], [INT], ["1"], [True]),
        "topics": Takes(["t"], 5, True, [5], [SURROGATE], *partitions_in(lambda tp: [tp] if tp != "t-0" else [5])),
    },
    "alter_replica_log_dirs": {
        "moves": Takes(
            {TopicPartitionReplica("t", 0, 1): "/d"},
            *NO_DICT,
            {5: "/d"},
            {("t", 0): "/d"},
            {("t", -1, 1): "/d"},
            {("t", 0, -1): "/d"},
            {("t", 0, INT): "/d"},
            {("t", 0, 1): ""},
            {("t", 0, 1): SURROGATE},
        )
    },
    "describe_quorum": {},
    "add_voter": {"node_id": broker, "directory_id": directory, "address": Takes("h:1", 5, None, SURROGATE)},
    "remove_voter": {"node_id": broker, "directory_id": directory},
    "transfer_leadership": {"node_id": Takes(1, *NUMBERS)},
    "describe_features": {},
    "update_features": {
        "levels": Takes(
            {"metadata.version": 1}, *NO_DICT, {}, {5: 1}, {SURROGATE: 1}, {"f": -1}, {"f": 2**15}, {"f": "1"}
        ),
        "downgrade": flag,
        "validate_only": flag,
    },
    "elect_leaders": {
        "election_type": Takes("preferred", 5, None, "dirty", ["preferred"]),
        "partitions": Takes([TP], *partitions_in(lambda tp: [tp]), 5, "t", TP),
    },
    "alter_partition_reassignments": {
        "reassignments": Takes(
            {TP: [1]},
            *NO_DICT,
            *partitions_in(keyed([1])),
            *({TP: each} for each in (5, "1", [-1], [INT], ["1"], [True])),
        ),
        "throttle_bytes_per_s": Takes(5, -1, LONG, 1.5, "1", True),
        "allow_replication_factor_change": flag,
    },
    "list_partition_reassignments": {"partitions": Takes([TP], *partitions_in(lambda tp: [tp]), 5, "t", TP)},
    "drain_broker": {"broker_id": broker, "cancel": flag},
    "unregister_broker": {"broker_id": broker},
    "list_groups": {"states": Takes(["stable"], 5, [5], ["nothing"], [SURROGATE])},
    "describe_groups": {"group_ids": groups, "raise_errors": flag},
    "describe_lag": {"group_ids": groups, "raise_errors": flag},
    "explain_group": {"group_id": known_group},
    "list_group_offsets": {"group_id": known_group, "partitions": some_partitions, "require_stable": flag},
    "alter_group_offsets": {
        "group_id": group,
        "offsets": Takes(offsets_of_group.good, None, *offsets_of_group.bad),
    },
    "delete_group_offsets": {"group_id": group, "partitions": some_partitions},
    "remove_group_members": {"group_id": group, "member_ids": Takes(["m"], 5, [5], [""], [SURROGATE])},
    "delete_groups": {"group_ids": groups},
    "list_transactions": {
        "states": Takes(["prepared"], 5, [5], ["nothing"], [SURROGATE]),
        "producer_ids": Takes([5], 5, "5", *([each] for each in (-1, LONG, 1.5, "1", None, True))),
        "open_for_ms": Takes(5, *(each for each in OFFSETS if each is not None)),
        "prefix": Takes("t", *TEXTS, None),
    },
    "describe_transactions": {"transactional_ids": names, "raise_errors": flag},
    "describe_producers": {"partitions": Takes([TP], *partitions_in(lambda tp: [tp]), 5, True)},
    "abort_transaction": {"transactional_id": Takes("t", *TEXTS, None, "")},
    "abort_hanging_transaction": {
        "partition": partition,
        "producer_id": Takes(5, *OFFSETS),
        "start_offset": Takes(5, *OFFSETS),
    },
    "complete_transaction": {"token": token, "commit": flag},
    "describe_sink": {"sink": group},
    "commit_sink_batch": {
        "sink": group,
        "batch": batch,
        "tokens": tokens,
        "generation": Takes(5, -1, LONG, 1.5, "1", True),
        "is_final": flag,
    },
    "abort_sink_batch": {"sink": group, "batch": batch, "generation": batch, "is_final": flag},
    "start": {},
    "close": {},
}
for method, row in ADMIN.items():
    if method not in ("start", "close"):
        row["timeout"] = timeout

TABLES = {"Producer": PRODUCER, "Consumer": CONSUMER, "Admin": ADMIN}
CLIENTS = [prefix + name for name in TABLES for prefix in ("", "Async")]
METHODS = [
    (client, name)
    for client in CLIENTS
    for name in dir(getattr(headrace, client))
    if not name.startswith("_") and name != "from_properties" and callable(getattr(getattr(headrace, client), name))
]


def made(client: str) -> Any:
    """A client of a cluster that does not exist."""
    kind = client.removeprefix("Async")
    quick: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "bootstrap_timeout_ms": 0, "default_api_timeout_ms": 1}
    if kind == "Producer":
        quick |= {"max_block_ms": 1}
    if kind == "Consumer":
        quick |= {"group_id": "g"}
    return getattr(headrace, client)(**quick)


#: The methods that accept any number of partitions as positional arguments.
ANY_NUMBER = ("seek_to_beginning", "seek_to_end", "seek_to_committed", "pause", "resume")


def call(client: Any, method: str, values: dict[str, Any]) -> BaseException | None:
    """Return the exception that the call raises. Positional parameters of any number get one value."""

    async def run() -> None:
        found = client_method(*rest, **values)
        if inspect.isawaitable(found) and type(client).__name__.startswith("Async"):
            await found

    client_method = getattr(client, method)
    rest = [values.pop("partitions")] if method in ANY_NUMBER else []
    try:
        asyncio.run(run())
    except Exception as error:  # noqa: BLE001
        return error
    return None


def prepare(client: Any, method: str) -> None:
    if "Consumer" in type(client).__name__ and method not in ("subscribe",):
        client.assign([TP])
        if method == "fetch_arrow":
            client.pause(TP)


def row_of(client: str, method: str) -> dict[str, Takes]:
    rows = TABLES[client.removeprefix("Async")]
    assert method in rows, f"{client}.{method} has no row in this test: say what its parameters take"
    parameters = set(inspect.signature(getattr(getattr(headrace, client), method)).parameters) - {"self"}
    row = {name: takes for name, takes in rows[method].items() if name in parameters or name != "on_delivery"}
    assert set(row) == parameters, f"{client}.{method}: say what each of its parameters takes"
    return row


def test_every_row_belongs_to_a_method() -> None:
    for name, rows in TABLES.items():
        assert set(rows) <= {method for client, method in METHODS if client.removeprefix("Async") == name}


@pytest.mark.parametrize(("client", "method"), METHODS)
def test_bad_argument_is_refused_at_the_call(client: str, method: str) -> None:
    row = row_of(client, method)
    good = {name: takes.good for name, takes in row.items()}
    for name, takes in row.items():
        for bad in takes.bad:
            target = made(client)
            prepare(target, method)
            error = call(target, method, {**good, name: bad})
            assert isinstance(error, REFUSED), f"{client}.{method}({name}={bad!r}): {error!r}"
            assert error.message
            asyncio.run(target.close()) if client.startswith("Async") else target.close()


@pytest.mark.parametrize(("client", "method"), METHODS)
def test_good_arguments_are_not_refused(client: str, method: str) -> None:
    if method == "send_arrow":
        pytest.skip("needs pyarrow's table; see the tests of send_arrow")
    row = row_of(client, method)
    target = made(client)
    prepare(target, method)
    good = {name: takes.good for name, takes in row.items()}
    if method == "seek":
        assert call(target, method, dict(good)) is None
    error = call(target, method, good)
    assert error is None or (isinstance(error, HeadraceError) and not isinstance(error, REFUSED)), repr(error)
    asyncio.run(target.close()) if client.startswith("Async") else target.close()


@pytest.mark.parametrize("endless", [1e300, float("inf"), 10**400, 2**31])
def test_time_out_that_is_longer_than_anything_is_the_longest(endless: Any) -> None:
    assert arguments.seconds(endless) == arguments.SECONDS_MAX
    admin = made("Admin")
    error = call(admin, "list_topics", {"timeout": endless})
    assert isinstance(error, HeadraceError)
    assert not isinstance(error, REFUSED)
    admin.close()


def test_whole_numbers_of_other_types_are_numbers() -> None:
    import numpy

    consumer = made("Consumer")
    consumer.assign([("t", numpy.int32(0))])
    consumer.seek(TP, numpy.int64(7))
    assert consumer.position(TP) == 7
    consumer.close()


def test_send_to_a_known_topic_refuses_them_too() -> None:
    acc = accumulator.Accumulator(batch_bytes=1_000, buffer_bytes=10_000, wake=lambda: None, slow=lambda *_: None)
    acc.topics["t"] = accumulator.TopicQueues(acc, "t", 2, 1_000)
    for send in (accumulator.NativeProducer(acc).send, accumulator.NativeAsyncProducer(acc).send):
        for bad in NUMBERS:
            with pytest.raises(InvalidArgumentError, match="partition="):
                send("t", b"v", partition=bad)
        for bad in TIMES[:2]:
            with pytest.raises(InvalidTimestampError):
                send("t", b"v", timestamp_ms=bad)
        for bad in (1.5, "1"):
            with pytest.raises(InvalidArgumentError, match="timestamp_ms"):
                send("t", b"v", timestamp_ms=bad)
        for bad in (None, 5, b"t"):
            with pytest.raises(InvalidArgumentError, match="topic must be a str"):
                send(bad, b"v")
        for bad in (5, True, object()):
            with pytest.raises(InvalidArgumentError, match="headers must be"):
                send("t", b"v", headers=bad)
        with pytest.raises(InvalidArgumentError, match="header 0"):
            send("t", b"v", headers={SURROGATE: b"v"})
    assert acc.records_appended == 0


@pytest.mark.parametrize(
    "bad",
    [
        5,
        ("t", 0, 0),
        ("t", -1, 0, 5),
        (5, 0, 0, 5),
        ("t", 0, -1, 5),
        ("t", 0, 5, 4),
        ("t", 0, 0, LONG),
        ("t", 0, "0", 5),
    ],
)
def test_range_that_is_none_is_refused(bad: Any) -> None:
    for ranges in ([bad], 5):
        with pytest.raises(InvalidArgumentError, match=r"t-0|range|partition"):
            headrace.RangeReader(ranges, bootstrap_servers="127.0.0.1:1")
    with headrace.RangeReader([("t", 0, 0, 5)], bootstrap_servers="127.0.0.1:1") as reader:
        assert "1 of 1 ranges left, open" in repr(reader)
        for arguments_ in ({"columns": "key"}, {"columns": ["colour"]}, {"max_bytes": 0}, {"include_headers": 1}):
            with pytest.raises(InvalidArgumentError):  # at the call, before the first batch
                reader.arrow_batches(**arguments_)  # type: ignore[arg-type]


def test_one_partition_instead_of_a_list_is_refused_with_the_cure() -> None:
    with (
        headrace.Consumer(bootstrap_servers="127.0.0.1:1") as consumer,
        pytest.raises(InvalidArgumentError, match=r"partitions=TopicPartition.*: must be a list of TopicPartition"),
    ):
        consumer.assign(TP)  # type: ignore[arg-type]


def test_refused_topic_of_dead_letters_is_named() -> None:
    with (
        headrace.Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer,
        pytest.raises(InvalidArgumentError, match="dead_letters=5: must be a string"),
    ):
        consumer.process(print, dead_letters=5)  # type: ignore[arg-type]
