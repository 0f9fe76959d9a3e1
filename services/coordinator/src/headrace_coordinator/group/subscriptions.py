"""Resolve members' subscriptions (names and patterns) to existing topics.

Patterns of subscriptions have RE2's syntax (KIP-848: SubscriptionPattern) and must match a whole name, as in Java's
``Pattern.matches``. For any pattern, RE2 matches in linear time and with a bounded amount of memory. Python's ``re``
can take exponential time for a pattern such as ``(a*)*b``, so one member could block a coordinator. A pattern matches
an internal topic only if the pattern contains the topic's name, so ``.*`` does not read ``__consumer_offsets``. In
Kafka, ``.*`` matches internal topics in the coordinator, and clients of the classic protocol leave internal topics out
(exclude.internal.topics).

To subscribe to a topic by name, a member needs DESCRIBE on the topic; the coordinator checks this right when the member
sends the name. A pattern includes only topics that the member is authorized to describe; the coordinator checks this
again whenever topics or ACLs change. Without this check, a pattern would reveal the names of all topics to a member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import re2

from headrace_core.errors import InvalidRegularExpressionError
from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.security.access import Decider
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.security.caller import Caller
from headrace_core.security.principal import Principal

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


def _includes(regex: str, topic: str) -> bool:
    """Whether a pattern matches a topic. An internal topic must also have its name in the pattern; backslashes that
    quote characters of the name do not count."""
    if topic in SHARD_TOPICS and topic not in regex.replace("\\", ""):
        return False
    return compile_pattern(regex).fullmatch(topic) is not None


class Subscription(NamedTuple):
    """Topic names and a pattern ("": none), and the member for whom the pattern is resolved. ``principal`` "": the
    pattern includes every topic. Without a pattern, principal and host are "", so that equal subscriptions are equal.
    """

    names: tuple[str, ...] = ()
    regex: str = ""
    principal: str = ""
    host: str = ""

    def describes(self, topic: str) -> bool:
        """Whether the subscription includes a topic with the name ``topic``, existing or not, for a member that may
        describe the topic."""
        if topic in self.names:
            return True
        return bool(self.regex) and _includes(self.regex, topic)


class Topics:
    """The cluster's topics, and the subscriptions resolved to these topics. ``authorizer``: decides which topics the
    patterns of members may include; None: all."""

    def __init__(self) -> None:
        self.by_name: Mapping[str, Topic] | None = None
        self.names: dict[bytes, str] = {}
        self.authorizer: Decider | None = None
        self._matching: dict[str, tuple[str, ...]] = {}
        self._resolved: dict[Subscription, frozenset[bytes]] = {}
        self._digests: dict[bytes, int] = {}

    @property
    def is_known(self) -> bool:
        """Whether the cluster's topics have been set."""
        return self.by_name is not None

    def replace(self, by_name: Mapping[str, Topic], authorizer: Decider | None) -> None:
        self.by_name = by_name
        self.authorizer = authorizer
        self.names = {topic.topic_id: name for name, topic in by_name.items()}
        self._matching.clear()
        self._resolved.clear()
        self._digests.clear()

    def resolve(self, subscription: Subscription) -> frozenset[bytes]:
        """Ids of the existing topics that a subscription includes."""
        by_name = self.by_name or {}
        if subscription.host and not (self.authorizer is not None and self.authorizer.names_hosts):
            subscription = subscription._replace(host="")  # members on all hosts share the result
        found = self._resolved.get(subscription)
        if found is None:
            wanted = (*subscription.names, *self._seen(subscription)) if subscription.regex else subscription.names
            found = frozenset(by_name[name].topic_id for name in wanted if name in by_name)
            if len(self._resolved) >= REMEMBERED_MAX:
                self._resolved.clear()
            self._resolved[subscription] = found
        return found

    def _seen(self, subscription: Subscription) -> Iterable[str]:
        """The topics that match the pattern and that the member may describe."""
        matching = self._matches(subscription.regex)
        authorizer = self.authorizer
        if authorizer is None or not subscription.principal:
            return matching
        # the principal of an authenticated caller is always valid here
        kind, _, name = subscription.principal.partition(":")
        caller = Caller(Principal(kind, name), subscription.host)
        return [name for name in matching if authorizer.allows(caller, Operation.DESCRIBE, ResourceType.TOPIC, name)]

    def _matches(self, regex: str) -> tuple[str, ...]:
        found = self._matching.get(regex)
        if found is None:
            found = tuple(name for name in self.by_name or {} if _includes(regex, name))
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
