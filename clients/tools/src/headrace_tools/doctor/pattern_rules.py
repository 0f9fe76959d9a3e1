"""Doctor rules about patterns of use that work today but become expensive (docs/anti-patterns.md). Pure.

The findings are ADVICE: they name no fault, so neither the verdict nor the exit code changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from headrace_core.plurals import counted

from .facts import Facts
from .findings import Finding, Severity, rule, some

MIB = 2**20
#: Size in bytes below which a topic is tiny, and the acceptable number of tiny topics.
TINY_BYTES, TINY_TOPICS = MIB, 500
#: A topic is too wide if it has WIDE_PARTITIONS partitions, and more than PARTITIONS_A_MEMBER for each member of its
#: largest group.
WIDE_PARTITIONS, PARTITIONS_A_MEMBER = 100, 10
#: The largest number of replicas per broker that was measured (docs/sizing.md).
REPLICAS_A_BROKER = 5_000
#: The part of a disk that one topic without limits may take.
UNLIMITED_SHARE = 0.1
REPLY_TOPICS = 20
UNWATCHED_MS = 24 * 3_600_000

_REPLY = re.compile(r"(?i)(repl(y|ies)|response|inbox|callback|te?mp)")
_AN_ID = re.compile(r"(?i)[0-9a-f]{8}|\d{4}")


@rule("topics-tiny")
def topics_tiny(facts: Facts) -> Iterator[Finding]:
    """Too many tiny topics: each topic costs memory, files and metadata, however little data it has."""
    if facts.cluster is None or set(facts.log_dirs) != set(facts.brokers):
        return
    sizes: Counter[str] = Counter()
    for directories in facts.log_dirs.values():
        for directory in directories:
            for each in directory.replicas:
                sizes[each.topic] += each.size_bytes
    tiny = [topic.name for topic in facts.topics if not topic.internal and sizes[topic.name] < TINY_BYTES]
    if len(tiny) >= TINY_TOPICS:
        yield Finding(
            "topics-tiny",
            Severity.ADVICE,
            f"{len(tiny)} topics hold less than 1 MiB each",
            some(tiny),
            "put records of one kind into one topic, and distinguish them by key or header",
        )


@rule("partitions-unused")
def partitions_unused(facts: Facts) -> Iterator[Finding]:
    """More partitions than consumers need: a group can use at most one member per partition."""
    readers: Counter[str] = Counter()
    for group in facts.groups:
        for name, members in Counter(
            name for member in group.described.members for name in {each.topic for each in member.assigned}
        ).items():
            readers[name] = max(readers[name], members)
    for topic in facts.topics:
        wide, members = len(topic.partitions), readers[topic.name]
        if not topic.internal and wide >= WIDE_PARTITIONS and 0 < members * PARTITIONS_A_MEMBER < wide:
            yield Finding(
                "partitions-unused",
                Severity.ADVICE,
                f"topic {topic.name!r} has {wide} partitions; its largest group has {counted(members, 'member')}",
                f"topic {topic.name}",
                "create topics with the partitions that their consumers can use (docs/sizing.md)",
            )


@rule("members-idle")
def members_idle(facts: Facts) -> Iterator[Finding]:
    """More members than partitions: some members of the group have no partition."""
    for group in facts.groups:
        members = group.described.members
        idle = [each for each in members if not (each.assigned or each.revoking or each.target)]
        if group.described.state == "stable" and idle:
            yield Finding(
                "members-idle",
                Severity.ADVICE,
                f"{len(idle)} of {len(members)} members of group {group.described.group_id!r} have no partition",
                f"group {group.described.group_id}",
                "run at most one member more than there are partitions, or add partitions (`headrace topics alter "
                "TOPIC -p N`, which changes the partition of keys)",
            )


@rule("replicas-many")
def replicas_many(facts: Facts) -> Iterator[Finding]:
    """A broker with many replicas: its start and its drain take long."""
    held = Counter(broker for topic in facts.topics for part in topic.partitions for broker in part.replicas)
    for broker_id, replicas in sorted(held.items()):
        if replicas > REPLICAS_A_BROKER:
            yield Finding(
                "replicas-many",
                Severity.ADVICE,
                f"broker {broker_id} has {replicas} replicas; benchmarks cover {REPLICAS_A_BROKER}",
                f"broker {broker_id}",
                "add brokers (replicas move there automatically), or use fewer partitions for each topic",
            )


@rule("retention-unlimited")
def retention_unlimited(facts: Facts) -> Iterator[Finding]:
    """A topic without limits that takes a large part of a disk."""
    for name in sorted(facts.unlimited):
        for broker_id, directories in sorted(facts.log_dirs.items()):
            for directory in directories:
                size = sum(each.size_bytes for each in directory.replicas if each.topic == name)
                total = directory.total_bytes or 0
                if total and size >= UNLIMITED_SHARE * total:
                    yield Finding(
                        "retention-unlimited",
                        Severity.ADVICE,
                        f"topic {name!r} has no retention limit and takes {100 * size // total} % of a disk",
                        f"broker {broker_id}: {directory.path}",
                        f"`headrace topics alter {name} -c retention.ms=604800000` (or retention.bytes), or "
                        "`-c cleanup.policy=compact` where the last record of each key is enough",
                    )


@rule("reply-topics")
def reply_topics(facts: Facts) -> Iterator[Finding]:
    """A topic per request or per client, used as an inbox for replies."""
    names = [topic.name for topic in facts.topics if _REPLY.search(topic.name) and _AN_ID.search(topic.name)]
    if len(names) >= REPLY_TOPICS:
        yield Finding(
            "reply-topics",
            Severity.ADVICE,
            f"{len(names)} topics look like inboxes of single clients or requests",
            some(names),
            "use one reply topic for each service with the correlation id in a header, or a request-reply protocol",
        )


@rule("lag-unwatched")
def lag_unwatched(facts: Facts) -> Iterator[Finding]:
    """A group that has had lag, but no members, for a day or more."""
    for group in facts.groups:
        parts = () if group.lag is None else group.lag.partitions
        behind = sum(part.lag or 0 for part in parts)
        if group.described.state != "empty" or not behind:
            continue
        idle_ms = facts.now_ms + group.clock_ahead_ms - max(part.commit_timestamp_ms for part in parts)
        if idle_ms >= UNWATCHED_MS:
            name = group.described.group_id
            yield Finding(
                "lag-unwatched",
                Severity.ADVICE,
                f"group {name!r} has no members, is {counted(behind, 'record')} behind, and committed last "
                f"{int(idle_ms // 3_600_000)} h ago",
                f"group {name}",
                f"start its consumers, or `headrace groups delete {name}`; watch the lag with `headrace groups "
                "describe --all-groups --fail-on err`",
            )
