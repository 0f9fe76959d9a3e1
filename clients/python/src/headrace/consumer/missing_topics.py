"""Subscribed topics that do not exist: a warning names each of them once, and a metric counts them.

The coordinator assigns the partitions of topics that exist, and says nothing about the others, because a group may
subscribe to a topic before it exists. A wrong name would look like a topic without records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterator

from headrace_core.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace_protos.v1 import metadata_pb2

from ..engine.client import Engine
from ..group.member import Subscription

logger = logging.getLogger("headrace")

#: Seconds between two looks at the topics that may be missing; a topic that is created meanwhile is not reported.
LOOK_EVERY_S = 3.0
#: The longest pause between two looks for the first topic that matches a pattern: each look lists all topics.
PATTERN_EVERY_S_MAX = 60.0


class MissingTopics:
    """Looks up the subscribed topics of which the member has no partition, on the I/O thread."""

    def __init__(self, engine: Engine, group_id: str) -> None:
        #: The subscribed topics that do not exist now, or that this client may not see; a pattern that matches none.
        self.names: set[str] = set()
        self._engine, self._group_id = engine, group_id
        self._existing: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, subscription: Subscription, owned: Callable[[], set[str]]) -> None:
        """Watch the topics of a subscription; a repeated subscription repeats no warning. ``owned()``: the topics of
        which the member has partitions."""
        if self._task is not None:
            self._task.cancel()
        self.names &= {*subscription.topics, subscription.pattern}
        self._existing.clear()
        work = self._watch_pattern if subscription.pattern else self._watch_names
        self._task = self._engine.io.spawn(work(subscription, owned), "headrace-missing-topics")

    def stop(self) -> None:
        task, self._task = self._task, None
        self.names.clear()
        if task is not None:
            task.cancel()

    async def _watch_names(self, subscription: Subscription, owned: Callable[[], set[str]]) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            mine = owned()
            self._existing -= mine  # when the member loses such a topic, the topic may have been deleted
            self.names -= mine
            if asked := set(subscription.topics) - mine - self._existing:
                with _silently(self._group_id):
                    await self._look(asked)

    async def _look(self, topics: set[str]) -> None:
        deadline = self._engine.deadline(self._engine.request_timeout_s)
        errors = await self._engine.metadata.refresh(topics, deadline=deadline)
        missing = {name for name in topics if name in errors and not _is_passing(errors[name])}
        for name in sorted(missing - self.names):
            error = errors[name]
            if isinstance(error, UnknownTopicOrPartitionError):
                why = f"does not exist; check the name, or create the topic (headrace topics create {name})"
            else:
                why = f"cannot be read: {error.code}: {error.message}"
            logger.warning("group %r: the subscribed topic %r %s", self._group_id, name, why)
        self._existing |= topics - set(errors)
        self.names = missing

    async def _watch_pattern(self, subscription: Subscription, owned: Callable[[], set[str]]) -> None:
        """Until the member has partitions, compare the pattern with the names of all topics, less and less often."""
        pause_s = LOOK_EVERY_S
        with contextlib.suppress(re.error):  # one of RE2's few constructs that Python does not have
            pattern = re.compile(subscription.pattern)
            while not self._existing:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PATTERN_EVERY_S_MAX)
                with _silently(self._group_id):
                    self._existing = owned() or await self._matching(pattern)
                    self._note(subscription.pattern, is_missing=not self._existing)

    async def _matching(self, pattern: re.Pattern[str]) -> set[str]:
        request = metadata_pb2.MetadataRequest(all_topics=True)
        answer = await self._engine.metadata.ask(request, self._engine.deadline(self._engine.request_timeout_s))
        return {topic.name for topic in answer.topics if not topic.internal and pattern.fullmatch(topic.name)}

    def _note(self, pattern: str, *, is_missing: bool) -> None:
        if is_missing and not self.names:
            logger.warning("group %r: no topic matches the subscribed pattern %r", self._group_id, pattern)
        self.names = {pattern} if is_missing else set()


@contextlib.contextmanager
def _silently(group_id: str) -> Iterator[None]:
    """The client's other requests report a cluster that does not answer."""
    try:
        yield
    except HeadraceError as error:
        logger.debug("group %r: cannot look up its topics: %s", group_id, error)


def _is_passing(error: HeadraceError) -> bool:
    """Whether the next look may succeed: a topic without leaders exists."""
    return error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
