"""The settings of topics' logs on this broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_core.log import LogConfig
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.configs import broker_topic_defaults, topic_given
from headrace_core.metadata.records import ConfigResourceType


class LogSettings:
    """The settings of a topic's logs on this broker: the topic's own keys over the brokers' over this broker's file."""

    def __init__(self, *, static: Mapping[str, Any], flush_interval_ms: int) -> None:
        self._static = static
        self._flush_interval_ms = flush_interval_ms
        #: For which configurations and broker, and what was made for them.
        self._known: tuple[Mapping[Any, Any], int, dict[Any, LogConfig]] = ({}, -1, {})

    def of(self, image: MetadataImage, broker_id: int, topic: str) -> LogConfig:
        """Topics that say the same share one LogConfig, made once for as long as no configuration changes. Any
        thread."""
        known = self._known
        if known[0] is not image.configs or known[1] != broker_id:
            known = self._known = (image.configs, broker_id, {})
        key = tuple(sorted(image.config(ConfigResourceType.TOPIC, topic).items()))
        found = known[2].get(key)
        if found is None:
            found = known[2][key] = LogConfig.from_topic(
                topic_given(image, topic),
                broker_defaults=broker_topic_defaults(image, broker_id, self._static),
                flush_interval_ms=self._flush_interval_ms,
            )
        return found
