"""Resolve members' subscriptions (names and patterns) to existing topics.

Patterns of subscriptions have RE2's syntax (KIP-848: SubscriptionPattern) and must match a whole name, as in Java's
``Pattern.matches``. For any pattern, RE2 needs a time in proportion to the text and a bounded amount of memory.
Python's ``re`` can take forever for a pattern such as ``(a*)*b``, so one member could block a coordinator. Internal
topics never match a pattern, as with Kafka's default exclude.internal.topics=true; members can subscribe to them by
name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

import re2

from headrace_core.errors import InvalidRegularExpressionError
from headrace_core.metadata.shards import SHARD_TOPICS

from ..assignors import TopicSpec
from .messages import Topic

PATTERN_BYTES_MAX = 1 << 20  #: Maximum bytes of memory for one compiled pattern.
#: Maximum number of resolved subscriptions in the cache; most members of a group have equal subscriptions.
REMEMBERED_MAX = 10_000
_DIGEST_MASK = (1 << 63) - 1


@lru_cache(maxsize=1_000)
def compile_pattern(regex: str) -> re2._Regexp:
    """Compile a pattern. Raises InvalidRegularExpressionError if RE2 does not accept the pattern, or if the pattern is
    too large."""
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        shown = regex if len(regex) <= 60 else regex[:57] + "..."
        raise InvalidRegularExpressionError(
            f"topic pattern {shown!r} is not a valid RE2 expression: {said} (RE2 has no back-references and no "
            "look-around)"
        ) from None


class Topics:
    """The cluster's topics, and the subscriptions resolved to these topics."""

    def __init__(self) -> None:
        self.by_name: Mapping[str, Topic] | None = None
        self.names: dict[bytes, str] = {}
        self._matching: dict[str, tuple[str, ...]] = {}
        self._resolved: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
        self._digests: dict[bytes, int] = {}

    @property
    def is_known(self) -> bool:
        """Whether the cluster's topics have been set."""
        return self.by_name is not None

    def replace(self, by_name: Mapping[str, Topic]) -> None:
        self.by_name = by_name
        self.names = {topic.topic_id: name for name, topic in by_name.items()}
        self._matching.clear()
        self._resolved.clear()
        self._digests.clear()

    def resolve(self, names: tuple[str, ...], regex: str) -> frozenset[bytes]:
        """Ids of the existing topics that a subscription includes."""
        by_name = self.by_name or {}
        key = (names, regex)
        found = self._resolved.get(key)
        if found is None:
            wanted: Iterable[str] = (*names, *self._matches(regex)) if regex else names
            found = frozenset(by_name[name].topic_id for name in wanted if name in by_name)
            if len(self._resolved) >= REMEMBERED_MAX:
                self._resolved.clear()
            self._resolved[key] = found
        return found

    def _matches(self, regex: str) -> tuple[str, ...]:
        found = self._matching.get(regex)
        if found is None:
            pattern = compile_pattern(regex)
            found = tuple(
                name for name in self.by_name or {} if name not in SHARD_TOPICS and pattern.fullmatch(name) is not None
            )
            if len(self._matching) >= REMEMBERED_MAX:
                self._matching.clear()
            self._matching[regex] = found
        return found

    def specs(self, topic_ids: Iterable[bytes]) -> dict[bytes, TopicSpec]:
        """The topics in the form that assignors take."""
        by_name = self.by_name or {}
        found = {}
        for topic_id in topic_ids:
            topic = by_name[self.names[topic_id]]
            found[topic_id] = TopicSpec(topic.partitions, topic.racks)
        return found

    def digest(self, topic_ids: Iterable[bytes]) -> int:
        """A 63-bit digest that changes when any of the topics ``ids`` changes (as in KIP-1101); it does not depend on
        the topics' order."""
        return sum(self._digest(topic_id) for topic_id in topic_ids) & _DIGEST_MASK

    def _digest(self, topic_id: bytes) -> int:
        found = self._digests.get(topic_id)
        if found is None:
            topic = (self.by_name or {})[self.names[topic_id]]
            said = (topic.name, topic.topic_id, topic.partitions, [sorted(racks) for racks in topic.racks])
            found = int.from_bytes(hashlib.blake2b(repr(said).encode(), digest_size=8).digest(), "big")
            self._digests[topic_id] = found
        return found


def describes(names: tuple[str, ...], regex: str, topic: str) -> bool:
    """Whether a subscription includes a topic with the name ``topic``, existing or not."""
    if topic in names:
        return True
    return bool(regex) and topic not in SHARD_TOPICS and compile_pattern(regex).fullmatch(topic) is not None
