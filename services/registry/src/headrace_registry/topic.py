"""The topic of the schemas: create it, or check that an existing topic keeps every schema."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from headrace import AsyncAdmin, ConfigResource, NewTopic
from headrace.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from headrace_core.plurals import counted

from .settings import RegistrySettings

logger = logging.getLogger("headrace.registry")

RETRY_S = 0.5
#: Seconds that the creation of the topic waits for further brokers, if the cluster has fewer brokers than the
#: configured replication factor.
MORE_BROKERS_S = 5.0
#: max.message.bytes of a new topic: a schema of 1 MiB, in JSON with escapes.
MESSAGE_BYTES = 4 * 1024 * 1024
#: Bytes of a record batch that are neither key nor value.
OVERHEAD_BYTES = 1024
#: min.insync.replicas of a topic with at least three replicas.
IN_SYNC_MIN = 2


async def ensure_topic(settings: RegistrySettings) -> int:
    """Create the topic unless it exists; return the limit of a record's bytes. Waits for brokers until
    ``init_timeout_s``.

    Raises InvalidConfigError if the topic exists and could lose schemas (cleanup.policy) or has several partitions.
    Raises the cluster's last HeadraceError if the topic is not ready after ``init_timeout_s``.
    """
    servers = ",".join(settings.bootstrap_servers)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    deadline = begun + settings.init_timeout_s
    async with AsyncAdmin({**settings.client, "bootstrap.servers": servers, "client.id": "schema-registry"}) as admin:
        while True:
            try:
                await _create(admin, settings, takes_fewer=loop.time() >= begun + MORE_BROKERS_S)
                return await _checked(admin, settings)
            except InvalidConfigError:
                raise
            except HeadraceError as error:
                # A starting broker refuses calls, and a new topic takes a moment to reach every broker.
                if loop.time() + RETRY_S >= deadline:
                    raise
                logger.warning("cannot create or check topic %s: %s; trying again", settings.topic, error.message)
            await asyncio.sleep(RETRY_S)


async def _create(admin: AsyncAdmin, settings: RegistrySettings, *, takes_fewer: bool) -> None:
    """Create the topic unless it exists. ``takes_fewer``: whether to create a topic with fewer replicas than wanted,
    because no further broker has joined."""
    with contextlib.suppress(UnknownTopicOrPartitionError):
        await admin.describe_topics([settings.topic])
        return
    brokers = len((await admin.describe_cluster()).brokers)
    replicas = min(settings.replication_factor, brokers)
    if replicas == 0 or (replicas < settings.replication_factor and not takes_fewer):
        raise InvalidReplicationFactorError(
            f"cannot create topic {settings.topic} with {settings.replication_factor} replicas yet: "
            f"the cluster has {counted(brokers, 'live broker')}"
        )
    config = {"cleanup.policy": "compact", "max.message.bytes": str(MESSAGE_BYTES)}
    if replicas > IN_SYNC_MIN:
        config["min.insync.replicas"] = str(IN_SYNC_MIN)
    try:
        await admin.create_topics([NewTopic(settings.topic, partitions=1, replication_factor=replicas, config=config)])
    except TopicAlreadyExistsError:  # another replica was faster
        return


async def _checked(admin: AsyncAdmin, settings: RegistrySettings) -> int:
    """Return the limit of a record's bytes. Log a warning if the topic has fewer replicas than configured. Raises
    InvalidConfigError."""
    topic = settings.topic
    (found,) = await admin.describe_topics([topic])
    if len(found.partitions) != 1:
        raise InvalidConfigError(
            f"kafkastore.topic={topic} has {len(found.partitions)} partitions, and a registry needs exactly 1; set "
            "kafkastore.topic to another name"
        )
    replicas = len(found.partitions[0].replicas)
    if replicas < settings.replication_factor:
        logger.warning(
            "topic %s has %s, and kafkastore.topic.replication.factor is %d; add replicas with `headrace partitions "
            "reassign`",
            topic,
            counted(replicas, "replica"),
            settings.replication_factor,
        )
    resource = ConfigResource("topic", topic)
    configs = (await admin.describe_configs([resource]))[resource]
    policy = configs["cleanup.policy"].value
    if policy != "compact":
        raise InvalidConfigError(
            f"kafkastore.topic={topic} has cleanup.policy={policy}, by which brokers would delete schemas; run "
            f"`headrace configs alter -t {topic} --set cleanup.policy=compact`"
        )
    return int(configs["max.message.bytes"].value or 0) - OVERHEAD_BYTES
