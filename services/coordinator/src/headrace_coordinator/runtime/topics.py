"""The cluster's topics and ACLs as groups need them: builds TopicsChanged from metadata images. The topics include
internal topics, to which members may subscribe by name, but not by a pattern (group/subscriptions.py)."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.metadata import MetadataDelta, MetadataImage, TopicImage
from headrace_core.security.access import Authorization, Decider

from ..group.messages import Topic, TopicsChanged


class TopicsView:
    """The view of the cluster's topics that all shards share. ``current`` is for a shard that begins to serve;
    ``advance`` returns the changes for the other shards."""

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization
        self._authorizer: Decider | None = None
        self._topics: Mapping[str, Topic] = {}
        self._racks: dict[int, str] = {}

    @property
    def current(self) -> TopicsChanged:
        return TopicsChanged(self._topics, None, self._authorizer)

    def begin(self, image: MetadataImage) -> TopicsChanged:
        """Set all topics."""
        self._authorizer = self._authorization.authorizer
        self._racks = _racks(image)
        self._topics = {topic.name: self._seen(topic) for topic in image.topics.values()}
        return self.current

    def advance(self, image: MetadataImage, delta: MetadataDelta) -> TopicsChanged | None:
        """The change of topics and ACLs that groups must know; None if groups need not know of any change. Groups need
        not know of new leaders and lagging replicas. Apply the image's ACLs to the authorization before this call."""
        before_acls, self._authorizer = self._authorizer, self._authorization.authorizer
        racks = _racks(image) if delta.brokers else self._racks
        if racks != self._racks:  # do not keep replica ids: groups need only racks, which hardly ever change
            before = self._topics
            self.begin(image)
            changed = {name for name in {*before, *self._topics} if before.get(name) != self._topics.get(name)}
        else:
            changed = self._take(image, delta)
        if not changed and self._authorizer is before_acls:
            return None
        return TopicsChanged(self._topics, frozenset(changed), self._authorizer)

    def _take(self, image: MetadataImage, delta: MetadataDelta) -> set[str]:
        news: dict[str, Topic | None] = {topic.name: None for topic in delta.removed_topics.values()}
        for topic_id in delta.partitions:
            topic = image.topics.get(topic_id)
            if topic is not None:
                news[topic.name] = self._seen(topic)
        changed = {name for name, seen in news.items() if self._topics.get(name) != seen}
        if changed:
            topics = dict(self._topics)
            for name in changed:
                seen = news[name]
                if seen is None:
                    topics.pop(name, None)
                else:
                    topics[name] = seen
            self._topics = topics
        return changed

    def _seen(self, topic: TopicImage) -> Topic:
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            racks = tuple(
                frozenset(self._racks[each] for each in partition.replicas if each in self._racks)
                for partition in topic.partitions
            )
        return Topic(topic.name, topic.topic_id, len(topic.partitions), racks)


def _racks(image: MetadataImage) -> dict[int, str]:
    return {broker.broker_id: broker.rack for broker in image.brokers.values() if broker.rack}
