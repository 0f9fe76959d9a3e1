"""The broker's identity and settings, and subscriptions to changes while it runs.

``BrokerSettings`` has the value of each setting, and ``LiveSettings.current`` is the BrokerSettings in effect. Dynamic
values of this broker have the highest priority, then dynamic values of all brokers, then the properties file, then the
defaults. Code that cannot read a setting at each use (a waiting thread, an object that was given a limit) subscribes to
changes:

    live.subscribe(lambda old, new: cache.resize(new.open_files_max))

Subscribers are called in the event loop, after the topics' settings are in effect (``Roles.apply``), but before the
metadata change counts as applied. A client that alters a key through this broker receives the answer only after the new
value is in effect. To add a key, add a field to ``BrokerSettings``. Topic keys do not become fields of
``BrokerSettings``, because the logs get them through ``LogSettings``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.config import LONG_MAX, fields_from, from_key, key_of
from headrace_core.config.server_keys import SERVER
from headrace_core.log import LogConfig
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.configs import broker_topic_defaults, broker_values, topic_given
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.metadata.shards import INTERNAL_TOPICS
from headrace_core.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from headrace_core.telemetry import BrokerSettingsChanged, Emitter

logger = logging.getLogger("headrace.broker")

#: Callback for changed broker settings, called in the event loop with the old and the new values of the changed
#: settings.
Changed = Callable[["BrokerSettings", "BrokerSettings"], None]


@dataclass(slots=True)
class BrokerIdentity:
    """This broker's identity, written once when the controllers accept the registration."""

    cluster_id: str = ""
    broker_id: int = -1  #: The broker's id; -1 until the controllers have accepted the registration.
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings that can change while the broker runs, derived from configuration keys. All cleaner threads together
    use the configured buffer sizes.

    docs/reference/configuration.md describes each key.
    """

    retention_check_interval_ms: int = from_key(SERVER, "log.retention.check.interval.ms")
    initial_task_delay_ms: int = from_key(SERVER, "log.initial.task.delay.ms")
    recovery_threads_per_dir: int = from_key(SERVER, "num.recovery.threads.per.data.dir")
    cleaner_enable: bool = from_key(SERVER, "log.cleaner.enable")
    cleaner_threads: int = from_key(SERVER, "log.cleaner.threads")
    cleaner_dedupe_buffer_bytes: int = from_key(SERVER, "log.cleaner.dedupe.buffer.size")
    cleaner_io_buffer_bytes: int = from_key(SERVER, "log.cleaner.io.buffer.size")
    cleaner_load_factor: float = from_key(SERVER, "log.cleaner.io.buffer.load.factor")
    #: inf: no limit.
    cleaner_io_bytes_per_second: float = from_key(SERVER, "log.cleaner.io.max.bytes.per.second")
    cleaner_backoff_ms: int = from_key(SERVER, "log.cleaner.backoff.ms")
    dir_reserve_bytes: int = from_key(SERVER, "log.dir.reserve.bytes")
    scrub_bytes_per_second: int = from_key(SERVER, "log.scrub.bytes.per.second")  #: 0: no scrubbing.
    open_files_max: int = from_key(SERVER, "log.open.files.max")
    moves_bytes_per_second: int = from_key(SERVER, "replica.alter.log.dirs.io.max.bytes.per.second")
    leader_throttle_bytes_per_second: int = from_key(SERVER, "leader.replication.throttled.rate")
    producer_expiration_ms: int = from_key(SERVER, "producer.id.expiration.ms")
    producer_check_interval_ms: int = from_key(SERVER, "producer.id.expiration.check.interval.ms")
    #: The addresses of the schema registry; empty: none.
    schema_registry_urls: tuple[str, ...] = from_key(SERVER, "confluent.schema.registry.url", tuple)
    schema_cache_size_max: int = from_key(SERVER, "confluent.schema.registry.max.cache.size")
    missing_schema_ttl_s: int = from_key(SERVER, "confluent.missing.id.cache.ttl.sec")
    #: Bytes per second of a client without a quota in the metadata; LONG_MAX: no limit.
    producer_quota_default: int = from_key(SERVER, "quota.producer.default")
    consumer_quota_default: int = from_key(SERVER, "quota.consumer.default")

    @property
    def quota_defaults(self) -> dict[str, float]:
        """The quotas of clients without a quota in the metadata, by quota key."""
        wanted = {PRODUCER_BYTE_RATE: self.producer_quota_default, CONSUMER_BYTE_RATE: self.consumer_quota_default}
        return {key: float(value) for key, value in wanted.items() if value < LONG_MAX}

    @classmethod
    def of(cls, static: Mapping[str, Any], image: MetadataImage | None = None, broker_id: int = -1) -> BrokerSettings:
        """``static`` has the typed values that the properties file sets (NodeConfig.given)."""
        values = broker_values(image or MetadataImage(), broker_id, static)
        return cls(**fields_from(cls, values))

    def changed_keys(self, new: BrokerSettings) -> dict[str, tuple[Any, Any]]:
        """{key: (value here, value in ``new``)} of differing keys."""
        return {
            key_of(field): (before, after)
            for field in dataclasses.fields(self)
            if (before := getattr(self, field.name)) != (after := getattr(new, field.name))
        }


class LiveSettings:
    """The current settings, with subscriptions. Settings change only in the event loop; any thread may read
    ``current``, which is replaced as a whole."""

    def __init__(self, static: Mapping[str, Any], events: Emitter) -> None:
        self.current = BrokerSettings.of(static)
        self._static = static
        self._events = events
        self._subscribers: dict[Changed, None] = {}

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        """Call ``changed(old, new)`` after each change of the settings; returns a function that ends the
        subscription."""
        self._subscribers[changed] = None
        return lambda: self._subscribers.pop(changed, None) and None

    def after(self, image: MetadataImage, broker_id: int, delta: MetadataDelta | None = None) -> BrokerSettings:
        """The settings that ``apply`` with the same arguments puts into effect."""
        if delta is not None and not any(
            kind is ConfigResourceType.BROKER and name in ("", str(broker_id)) for kind, name in delta.configs
        ):
            return self.current
        return BrokerSettings.of(self._static, image, broker_id)

    def apply(self, image: MetadataImage, broker_id: int, delta: MetadataDelta | None = None) -> None:
        """Apply the broker keys of ``image``. With a ``delta``, apply the broker keys only if the delta changed a
        broker key."""
        old, new = self.current, self.after(image, broker_id, delta)
        if new == old:
            return
        self.current = new
        changed = {key: f"{before} -> {after}" for key, (before, after) in old.changed_keys(new).items()}
        self._events.emit(BrokerSettingsChanged(changed=changed))
        for subscriber in list(self._subscribers):
            try:
                subscriber(old, new)
            except Exception:  # a failing subscriber stops neither the other subscribers nor the change of the metadata
                logger.exception(
                    "cannot apply changed settings in a part of this broker; restart the broker to apply them: %s",
                    changed,
                )


class LogSettings:
    """The settings of a topic's logs on this broker. The topic's own keys have the highest priority, then the brokers'
    dynamic keys, then this broker's properties file. No key sets the timestamps of internal topics
    (``LogConfig.for_coordinators``)."""

    def __init__(self, *, static: Mapping[str, Any], flush_interval_ms: int) -> None:
        self._static = static
        self._flush_interval_ms = flush_interval_ms
        #: The cache of LogConfigs, with the configurations and the broker id from which they were made.
        self._known: tuple[Mapping[Any, Any], int, dict[Any, LogConfig]] = ({}, -1, {})

    def of(self, image: MetadataImage, broker_id: int, topic: str) -> LogConfig:
        """The LogConfig of a topic. Topics with equal settings share one LogConfig until a configuration changes. Any
        thread."""
        known = self._known
        if known[0] is not image.configs or known[1] != broker_id:
            known = self._known = (image.configs, broker_id, {})
        is_internal = topic in INTERNAL_TOPICS
        key = is_internal, *sorted(image.config(ConfigResourceType.TOPIC, topic).items())
        found = known[2].get(key)
        if found is None:
            found = LogConfig.from_topic(
                topic_given(image, topic),
                broker_defaults=broker_topic_defaults(image, broker_id, self._static),
                flush_interval_ms=self._flush_interval_ms,
            )
            found = known[2][key] = found.for_coordinators() if is_internal else found
        return found
