"""Measure the cost of authorization: the processor time of the checks of one request, in this process and without a
network.

    authorization.py [--rounds 300] [--short]

The node has 100 or 10,000 ACLs, an audit log, and one client whose topics are allowed by literal or by prefixed
entries, or refused. Requests have 1 or 50 topics.

    produce, fetch, metadata   the checks of the broker's handlers for one request (handlers/produce.py,
                               handlers/fetch.py, membership/metadata_view.py)
    poll                       a fetch request of an open session that changes no partitions
    unary: rules               a call that is not a stream: the rules of its method (security/gate.py)
    unary: identify            the session of its caller; this is authentication, and has no bar

Streams are identified once, so requests on them pay only for the checks. A figure is the difference between the times
of the same code with and without the authorizer, so loops over topics do not count. Each time is the thread's lowest
processor time of many rounds, because other programs can only make it larger. Every request is parsed before its round,
and its names are hashed, because a broker hashes them for its partitions.

A node's event loop runs in one thread, so the bar is of one core: 2 % at 10,000 requests a second are 2 us a request.
The bar applies to allowed requests; refused requests also make errors and lines of the audit log. "changed" is the
first request after a change of one ACL, and includes the node's one-time work for the change. "parse" is for
comparison: the cost of parsing the request alone, before its records are checked and written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measure import emit, machine

from headrace_core.errors import HeadraceError
from headrace_core.metadata.image import MetadataImage
from headrace_core.metadata.records import AclRecord, RemoveAclRecord
from headrace_core.metadata.security import SecurityBuilder, SecurityImage
from headrace_core.node.config import NodeConfig
from headrace_core.node.sasl_sessions import Sessions
from headrace_core.node.security import NodeSecurity
from headrace_core.security.access import Access, set_access
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.caller import Caller
from headrace_core.security.gate import SESSION_KEY, Gate
from headrace_core.security.principal import USER, Principal
from headrace_core.security.sasl.exchange import Identity
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2, groups_pb2, metadata_pb2, produce_pb2

RATE = 10_000  # requests a second
SHARE_MAX = 0.02  # of one core
BAR_US = SHARE_MAX / RATE * 1e6
ENTRIES = (100, 10_000)
TOPICS = (1, 50)
ALICE = Principal(USER, "alice")
TOPIC = ResourceType.TOPIC
LITERAL, PREFIXED, DENIED, AUTHENTICATION = "literal", "prefixed", "denied", "(authentication)"
_PEER = "ipv4:10.0.0.1:4711"


class Node:
    """The security of a broker with ``count`` ACLs of topics: alice has 50 literal and 50 prefixed ACLs, other users
    have the rest. One further ACL is for a group of alice."""

    def __init__(self, count: int, directory: Path) -> None:
        properties = {
            "node.id": "1",
            "log.dirs": str(directory),
            "listeners": "client://127.0.0.1:9095,internal://127.0.0.1:19095",
            "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
            "authorizer.class.name": "StandardAuthorizer",
            "audit.log.path": str(directory / "audit.log"),
        }
        self.security = NodeSecurity(NodeConfig.from_properties(properties, role="broker"))
        self._extra = _entry(count + 1, "extra", PatternType.LITERAL, "User:other")
        builder = SecurityBuilder(SecurityImage())
        for number in range(count):
            is_prefixed, topic = number % 2, number // 2
            name = f"{PREFIXED}-{topic}-" if is_prefixed else f"{LITERAL}-{topic}"
            pattern = PatternType.PREFIXED if is_prefixed else PatternType.LITERAL
            builder.replay(_entry(number, name, pattern, str(ALICE) if number < 100 else f"User:u{number % 100}"))
        builder.replay(_entry(count + 2, "group", PatternType.LITERAL, str(ALICE), ResourceType.GROUP))
        self.image = MetadataImage(next_offset=1, security=builder.finish())
        self.security.follow(lambda: self.image)
        self.access = Access(Caller(ALICE, "10.0.0.1", "app", "client"), self.security.authorization, "bench")

    def change(self) -> None:
        """Add an entry, or remove it again."""
        builder = SecurityBuilder(self.image.security)
        is_there = self._extra.acl_id in self.image.security.acls
        builder.replay(RemoveAclRecord(self._extra.acl_id) if is_there else self._extra)
        self.image = MetadataImage(next_offset=1, security=builder.finish())


def _entry(number: int, name: str, pattern: int, principal: str, resource: int = TOPIC) -> AclRecord:
    acl_id = number.to_bytes(16, "big")
    return AclRecord(acl_id, resource, name, pattern, principal, "*", Operation.ALL, Permission.ALLOW)


def names(kind: str, count: int) -> list[str]:
    suffix = "-of-a-service" if kind == PREFIXED else ""
    return [f"{kind}-{number}{suffix}" for number in range(count)]


# -- the checks of one request, as the handlers make them --------------------------------------------------------------


def produce(access: Access, partitions: list[TopicPartition]) -> int:
    refused = 0
    granted = access.granted(Operation.WRITE, TOPIC)
    for partition in partitions:
        try:
            if granted is not None and (topic := partition.topic) not in granted:
                access.require(Operation.WRITE, TOPIC, topic)
        except HeadraceError:
            refused += 1
    return refused


def fetch(access: Access, partitions: list[TopicPartition]) -> int:
    refused = 0
    _ = access.version
    granted = access.granted(Operation.READ, TOPIC)
    for partition in partitions:
        try:
            if granted is not None and partition.topic not in granted:
                access.require(Operation.READ, TOPIC, partition.topic)
        except HeadraceError:
            refused += 1
    return refused


def metadata(access: Access, topics: list[str]) -> int:
    refused = 0
    granted = access.granted(Operation.DESCRIBE, TOPIC)
    for name in topics:
        if not (granted is None or name in granted) and not access.allows(Operation.DESCRIBE, TOPIC, name):
            refused += 1
    return refused


def poll(access: Access, _: Any) -> object:
    return access.version


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: its checks, and its parsed form for some topics."""

    name: str
    check: Callable[[Access, Any], object]
    parsed: Callable[[list[str]], Callable[[], Any]]


def _hashed(items: list[Any]) -> list[Any]:
    for item in items:
        hash(item)  # Python keeps the hash of a string in the string
    return items


def _parts(message: Any, items: str) -> Callable[[], list[TopicPartition]]:
    data, of = message.SerializeToString(), type(message)
    return lambda: _hashed([TopicPartition(item.topic, item.partition) for item in getattr(of.FromString(data), items)])


def _produced(topics: list[str]) -> Callable[[], Any]:
    return _parts(
        produce_pb2.ProduceRequest(partitions=[produce_pb2.ProducePartition(topic=each) for each in topics]),
        "partitions",
    )


def _fetched(topics: list[str]) -> Callable[[], Any]:
    return _parts(
        fetch_pb2.FetchRequest(partitions=[fetch_pb2.FetchPartition(topic=each) for each in topics]), "partitions"
    )


def _described(topics: list[str]) -> Callable[[], Any]:
    data = metadata_pb2.MetadataRequest(topics=topics).SerializeToString()
    return lambda: _hashed(list(metadata_pb2.MetadataRequest.FromString(data).topics))


KINDS = (
    Kind("produce", produce, _produced),
    Kind("fetch", fetch, _fetched),
    Kind("metadata", metadata, _described),
)


# -- measuring ---------------------------------------------------------------------------------------------------------

UNLIMITED = Access(Caller(ALICE, "10.0.0.1"), None)
_TOGETHER = 200  # checks of topics between two readings of the clock


def cost_us(check: Callable[[Access, Any], object], access: Access, parsed: Callable[[], Any], rounds: int) -> float:
    """The lowest processor time of a request over ``rounds`` rounds, in microseconds."""
    found = []
    for _ in range(rounds):
        first = parsed()
        requests = [first, *(parsed() for _ in range(_TOGETHER // max(len(first or ()), 4)))]
        started_ns = time.thread_time_ns()
        for request in requests:
            check(access, request)
        found.append((time.thread_time_ns() - started_ns) / len(requests) / 1e3)
    return min(found)


def _parse(parsed: Callable[[], Any], _: Access, __: Any) -> object:
    return parsed()


def added_us(check: Callable[[Access, Any], object], access: Access, parsed: Callable[[], Any], rounds: int) -> float:
    """The time that the authorizer adds to a request, in microseconds."""
    return cost_us(check, access, parsed, rounds) - cost_us(check, UNLIMITED, parsed, rounds)


def changed_us(node: Node, check: Callable[[Access, Any], object], parsed: Callable[[], Any], rounds: int) -> float:
    """The processor time of the first request after a change of one ACL, in microseconds."""
    found = []
    for _ in range(max(rounds // 10, 2)):
        node.change()
        request = parsed()
        started_ns = time.thread_time_ns()
        check(node.access, request)
        found.append((time.thread_time_ns() - started_ns) / 1e3)
    return min(found)


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    acls: int
    topics: int
    names: str
    us: float
    changed_us: float | None
    parse_us: float | None = None

    @property
    def has_bar(self) -> bool:
        return self.names not in (DENIED, AUTHENTICATION)

    def __str__(self) -> str:
        verdict = "" if not self.has_bar else "met" if self.us <= BAR_US else "ABOVE"
        after, parse = ("" if each is None else f"{each:.1f}" for each in (self.changed_us, self.parse_us))
        share = self.us * RATE / 1e6
        columns = self.what, self.acls, self.topics, self.names, f"{self.us:.2f}", f"{share:.2%}", verdict, after, parse
        return "| " + " | ".join(map(str, columns)) + " |"


def rows(node: Node, acls: int, rounds: int) -> Iterator[Row]:
    for kind, topics, of in itertools.product(KINDS, TOPICS, (LITERAL, PREFIXED, DENIED)):
        parsed = kind.parsed(names(of, topics))
        refused = kind.check(node.access, parsed())
        assert refused == (topics if of == DENIED else 0), (kind.name, of, refused)
        us = added_us(kind.check, node.access, parsed, rounds if of != DENIED else max(rounds // 10, 2))
        parse_us = cost_us(partial(_parse, parsed), node.access, lambda: None, rounds)
        yield Row(kind.name, acls, topics, of, us, changed_us(node, kind.check, parsed, rounds), parse_us)
    yield Row("poll", acls, 0, "-", added_us(poll, node.access, lambda: None, rounds), None)


class _Context:
    """The parts of gRPC's context that a gate reads."""

    def __init__(self, token: str) -> None:
        self._metadata = ((SESSION_KEY, token), ("user-agent", "grpc-python-asyncio"))

    def peer(self) -> str:
        return _PEER

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


class _Mechanisms:
    def is_revoked(self, identity: Identity) -> bool:
        return False


async def unary(node: Node, acls: int, rounds: int) -> list[Row]:
    """A heartbeat of a group on an authenticated connection: it is identified and checked, but no handler runs."""
    mechanisms: Any = _Mechanisms()
    sessions = Sessions("client", mechanisms, now_ms=lambda: time.time() * 1_000)
    _, token = sessions.open(Identity("alice", "SCRAM-SHA-512"), _PEER, "app")
    gate = Gate("client", "SASL_SSL", node.security.authorization, sessions=sessions)
    path = "/headrace.v1.Groups/ClassicHeartbeat"
    context = _Context(token)

    async def handled(request: Any, _: Any) -> Any:
        return None

    checked = gate.guarded(handled, path, has_request=True)
    request = groups_pb2.ClassicHeartbeatRequest(group_id="group")

    def identify(_: Any, __: Any) -> object:
        return gate.admit(path, context)

    def rules(access: Access, _: Any) -> None:
        set_access(access)
        with contextlib.suppress(StopIteration):
            checked(request, context).send(None)

    identified = cost_us(identify, node.access, lambda: None, rounds)
    return [
        Row("unary: rules", acls, 0, "group", added_us(rules, node.access, lambda: None, rounds), None),
        Row("unary: identify", acls, 0, AUTHENTICATION, identified, None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--short", action="store_true", help="2 rounds")
    asked = parser.parse_args()
    rounds = 2 if asked.short else asked.rounds
    emit(machine=machine(), bar_us=BAR_US)
    found: list[Row] = []
    print("| request | ACLs | topics | names | us | of a core | bar | changed, us | parse, us |")
    print("|---|---|---|---|---|---|---|---|---|")
    for acls in ENTRIES:
        with tempfile.TemporaryDirectory() as directory:
            node = Node(acls, Path(directory))
            for row in itertools.chain(rows(node, acls, rounds), asyncio.run(unary(node, acls, rounds))):
                found.append(row)
                print(row, flush=True)
    above = [row for row in found if row.has_bar and row.us > BAR_US]
    print(f"above the bar of {BAR_US:g} us: {len(above)} of {sum(row.has_bar for row in found)} kinds of requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
