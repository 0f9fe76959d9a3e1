"""Register a controller in the metadata with the feature levels that it supports (KIP-919), so that metadata.version is
not raised beyond these levels. The registration is repeated with the active leader until the metadata contains it."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio

from headrace_core.errors import HeadraceError
from headrace_core.metadata.features import SUPPORTED_FEATURES
from headrace_core.rpc import PLAINTEXT, ChannelPurpose, Channels, error_from_rpc
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

from ..cluster.requests import RegisterController
from ..driver import ControllerDriver

logger = logging.getLogger("headrace.controller.registration")

#: Seconds between two attempts to register a controller. A controller need not hurry to register: only the next change
#: of metadata.version needs its registration.
_INTERVAL_S = 1.0
_TIMEOUT_S = 5.0


class Registrar:
    """``run`` is a task that runs as long as the controller."""

    def __init__(self, driver: ControllerDriver, cluster_id: str, channels: Channels = PLAINTEXT) -> None:
        self._channels = channels
        self._driver = driver
        self._cluster_id = cluster_id
        self._request = RegisterController(
            driver.controller.node_id, driver.controller.key.directory_id, SUPPORTED_FEATURES
        )

    async def run(self) -> None:
        while True:
            if not self.is_known():
                try:
                    await self._register()
                # The registration failed: there is no leader, or a new leader, or the feature level is not supported.
                except HeadraceError as error:
                    logger.debug("not registered yet: %s", error)
            await asyncio.sleep(_INTERVAL_S)

    def is_known(self) -> bool:
        """Whether the metadata contains the registration. The result is also True while the metadata.version has no
        record for controllers, or while no cluster exists yet."""
        image = self._driver.image
        if image.metadata_version < 2 or self._driver.leader_id < 0:
            return True
        known = image.ledger.controllers.get(self._request.controller_id)
        return known is not None and (known.directory_id, known.features) == (
            self._request.directory_id,
            self._request.features,
        )

    async def _register(self) -> None:
        leader_id = self._driver.leader_id
        if leader_id == self._request.controller_id:
            await self._driver.ask(self._request)
            return
        address = self._driver.controller.addresses.get(leader_id)
        if address is None:
            return
        message = cluster_pb2.RegisterControllerRequest(
            cluster_id=self._cluster_id,
            controller_id=self._request.controller_id,
            directory_id=self._request.directory_id,
            features=[
                cluster_pb2.FeatureRange(name=each.name, min_level=each.min_level, max_level=each.max_level)
                for each in self._request.features
            ],
        )
        async with self._channels.open(address, ChannelPurpose.CONTROL) as channel:
            stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            try:
                await stub.RegisterController(message, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as failure:
                raise error_from_rpc(failure, address) from None
