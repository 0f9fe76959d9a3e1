"""The Metadata service: answers with this broker's view of the cluster, and creates missing topics if allowed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace_core.errors import HeadraceError, InvalidTopicError
from headrace_core.item_errors import error_to_proto
from headrace_core.membership.metadata_view import MetadataView, shard_topic
from headrace_core.membership.metadata_watch import MetadataWatch
from headrace_core.security.access import Access, current_access
from headrace_core.security.acl_types import CLUSTER_NAME, Operation, ResourceType
from headrace_core.security.refusals import refusal
from headrace_core.telemetry import TopicAutoCreated
from headrace_core.types import check_topic_name
from headrace_protos.v1 import admin_pb2, common_pb2, metadata_pb2_grpc

from ..context import BrokerContext
from ..controller_link import ControllerLink

logger = logging.getLogger(__name__)

#: Maximum number of topics that one metadata request creates; the client gets the remaining topics by its next
#: requests.
AUTO_CREATED_MAX = 100


class MetadataService(metadata_pb2_grpc.MetadataServicer):
    """headrace.v1.Metadata."""

    def __init__(
        self,
        broker: BrokerContext,
        controller: ControllerLink,
        *,
        auto_create: bool,
        topic_defaults: Mapping[str, Any],
        listener: str,
    ) -> None:
        """``listener`` is the listener that serves the request; the answers contain the brokers' addresses on this
        listener."""
        self._listener = listener
        self._broker = broker
        self._controller = controller
        self._auto_create = auto_create
        self._topic_defaults = topic_defaults
        self._view: MetadataView | None = None

    async def GetMetadata(self, request: Any, context: Any) -> Any:
        metadata, limits = self._broker.metadata, self._broker.limits
        await metadata.wait_for(max(request.min_metadata_offset, 1), limits.request_timeout_ms)
        failed = {}
        if request.allow_auto_topic_creation and self._auto_create:
            failed = await self._create_missing(list(request.topics), current_access())
        answer = await self._response(request)
        for topic in answer.topics if request.allow_auto_topic_creation else ():
            if topic.error.code != common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if topic.name in failed:
                why = failed[topic.name]  # report the failed creation, not that the topic is missing
                if why.code == common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED:
                    topic.error.CopyFrom(why)
                    continue
                topic.error.code, topic.error.message = why.code, f"the controller could not create it: {why.message}"
            elif topic.name.startswith("__"):
                topic.error.message += "; brokers create no topic whose name begins with __ for a client"
            elif not self._auto_create:
                topic.error.message += "; brokers do not create it, because auto.create.topics.enable is false"
        return answer

    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        metadata, limits = self._broker.metadata, self._broker.limits
        await metadata.wait_for(max(request.min_metadata_offset, 1), limits.request_timeout_ms)
        topic, failed = shard_topic(request), {}
        if request.keys and metadata.image.topic(topic) is None:
            # Create internal topics independently of auto.create.topics.enable, as in Kafka.
            failed = await self._create_internal(topic)
        answer = self._own_view().find_coordinators(metadata.image, request, metadata.lag.ms)
        if topic in failed and metadata.image.topic(topic) is None:
            for each in answer.coordinators:
                if each.error.code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE:
                    each.error.message = f"cannot create topic {topic}: {failed[topic].message}; retry"
        return answer

    async def WatchMetadata(self, request: Any, context: Any) -> None:
        metadata = self._broker.metadata
        await metadata.wait_for(max(request.min_metadata_offset, 1), self._broker.limits.request_timeout_ms)
        watch = MetadataWatch(request, lambda: self._response(request), metadata.watch, lambda: metadata.lag.ms)
        await watch.serve(context)

    async def _response(self, request: Any) -> Any:
        metadata = self._broker.metadata
        return await self._own_view().response(
            metadata.image,
            request,
            controller_id=metadata.controller_id,
            lag_ms=metadata.lag.ms,
            controllers=None if metadata.controllers is None else metadata.controllers.known,
        )

    def _own_view(self) -> MetadataView:
        if self._view is None:  # the view is created late, because the broker's id is known after its registration
            self._view = MetadataView(
                listener=self._listener,
                broker_id=self._broker.broker_id,
                topic_defaults=self._topic_defaults,
                request_bytes_max=self._broker.limits.request_bytes_max,
            )
        return self._view

    async def _create_missing(self, names: list[str], access: Access) -> dict[str, Any]:
        """Create the missing topics; returns the failures (Error messages) by topic name. The caller needs CREATE on
        the cluster or on the topic, as in Kafka."""
        missing = [name for name in dict.fromkeys(names) if self._may_create(name)]
        failed = {}
        if missing and access.is_limited:
            missing = [each for each in missing if access.sees(Operation.DESCRIBE, ResourceType.TOPIC, each)]
            if missing and not access.sees(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
                refused = access.refused(missing, Operation.CREATE, ResourceType.TOPIC)
                failed = {
                    name: error_to_proto(refusal(Operation.CREATE, ResourceType.TOPIC, name, access.caller.principal))
                    for name in refused
                }
                missing = [name for name in missing if name not in refused]
        return failed | (await self._create(missing[:AUTO_CREATED_MAX]) if missing else {})

    async def _create(self, missing: list[str]) -> dict[str, Any]:
        """Create the topics; returns the failures by topic name. A topic that already exists is no failure."""
        wanted = admin_pb2.CreateTopicsRequest(
            topics=[admin_pb2.NewTopic(name=name, partitions=-1, replication_factor=-1) for name in missing]
        )
        timeout_ms = self._broker.limits.request_timeout_ms
        try:
            answer = await self._controller.call("CreateTopics", wanted, timeout_ms)
            for result in answer.results:
                if not result.error.code:
                    self._broker.events.emit(TopicAutoCreated(topic=result.name))
            await self._broker.metadata.wait_for(answer.metadata_offset, timeout_ms)
            fine = (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS)
            return {result.name: result.error for result in answer.results if result.error.code not in fine}
        except HeadraceError as error:
            logger.warning(
                "cannot create topics %s for a client (auto.create.topics.enable): %s", ", ".join(missing), error
            )
            return dict.fromkeys(missing, error_to_proto(error))

    async def _create_internal(self, name: str) -> dict[str, Any]:
        """Create the internal topic; returns the failure by topic name, or an empty dict if the topic exists now."""
        timeout_ms = self._broker.limits.request_timeout_ms
        try:
            offset = await self._controller.create_internal_topic(name, timeout_ms)
            await self._broker.metadata.wait_for(offset, timeout_ms)
        except HeadraceError as error:
            logger.warning("cannot create topic %s for a client that looks for a coordinator: %s", name, error)
            return {name: error_to_proto(error)}
        self._broker.events.emit(TopicAutoCreated(topic=name))
        return {}

    def _may_create(self, name: str) -> bool:
        if self._broker.metadata.image.topic(name) is not None or name.startswith("__"):
            return False
        try:
            check_topic_name(name)
        except InvalidTopicError:
            return False
        return True
