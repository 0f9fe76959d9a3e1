"""The server's names for the defaults of topic keys (Kafka's ServerTopicConfigSynonyms).

A broker gives a topic key its value when the topic does not: ``log.retention.ms`` stands for ``retention.ms``.
"""

from __future__ import annotations

#: A topic's key -> the server's key that gives its default for topics that do not set it.
TOPIC_DEFAULT_KEYS: dict[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "log.flush": "log.flush",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}

#: Coarser spellings of a topic default, the finest first: key -> (the key in milliseconds, factor). The finest one
#: that is given wins.
COARSE_DEFAULT_KEYS: dict[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}


def topic_hints() -> dict[str, str]:
    """What to tell somebody who gives a topic one of the server's keys."""
    topic_keys = {server: topic for topic, server in TOPIC_DEFAULT_KEYS.items()}
    named = topic_keys | {coarse: topic_keys[fine] for coarse, (fine, _) in COARSE_DEFAULT_KEYS.items()}
    return {
        server: f"for a topic it is called {topic!r} ({server} is the brokers' default of it)"
        for server, topic in named.items()
        if server != topic
    }


def server_hints() -> dict[str, str]:
    """What to tell somebody who gives a server one of a topic's keys."""
    return {
        topic: f"for a server it is called {server!r} (the default of topics that do not set {topic})"
        for topic, server in TOPIC_DEFAULT_KEYS.items()
        if server != topic
    }
