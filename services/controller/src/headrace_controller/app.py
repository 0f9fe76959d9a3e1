"""The composition root of a controller: what is made of what, in which order it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import random

from headrace_core.clock import SystemClock
from headrace_core.errors import InvalidConfigError
from headrace_core.log.files import RealFileSystem
from headrace_core.node.config import NodeConfig
from headrace_core.node.ids import random_id
from headrace_core.node.listeners import CLIENT, INTERNAL, ListenerAddress, advertised
from headrace_core.node.meta_properties import read_meta
from headrace_core.node.run import settle_memory
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.rpc.metadata_view import MetadataView
from headrace_core.rpc.server import Listener
from headrace_core.telemetry import Emitter, NodeStarted, NodeStopped, log_events

from .cluster.core import ClusterCore
from .cluster.decision import ClusterSettings
from .driver import ControllerDriver
from .handlers.admin import AdminHandler
from .handlers.cluster import ClusterHandler
from .handlers.follow import FollowService
from .handlers.metadata import MetadataHandler
from .observed_log import ObservedLog
from .quorum_controller import QuorumController, QuorumSettings
from .storage import MetadataStorage

logger = logging.getLogger("headrace.controller")

ROLE = "controller"
_STOP_GRACE_S = 2.0


def settings_of(config: NodeConfig) -> ClusterSettings:
    """The controller's slice of the configuration."""
    values = config.values
    return ClusterSettings(
        num_partitions=values["num.partitions"],
        default_replication_factor=values["default.replication.factor"],
        delete_topic_enable=values["delete.topic.enable"],
        broker_session_timeout_ms=values["broker.session.timeout.ms"],
        broker_session_disconnect_grace_ms=values["broker.session.disconnect.grace.ms"],
        metadata_max_records_per_request=values["metadata.max.records.per.request"],
        unclean_leader_election_enable=values["unclean.leader.election.enable"],
        unclean_leader_election_interval_ms=values["unclean.leader.election.interval.ms"],
        auto_leader_rebalance_enable=values["auto.leader.rebalance.enable"],
        leader_imbalance_check_interval_seconds=values["leader.imbalance.check.interval.seconds"],
        leader_imbalance_per_broker_percentage=values["leader.imbalance.per.broker.percentage"],
    )


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a controller until ``stop`` is set. HeadraceError or OSError: it could not start, or its disk failed."""
    clock = SystemClock()
    started_ms, started_at_ms = clock.monotonic_ms(), clock.now_ms()
    emitter = Emitter()
    emitter.subscribe(log_events(logger))
    storage = _open_storage(config, clock)
    clean = False
    try:
        driver = _make_driver(config, storage, clock, emitter)
        driver.start()
        addresses_by_id = {voter.node_id: voter.address for voter in config.voters}
        following = FollowService(ObservedLog(driver, storage, addresses_by_id), clock)
        listeners, cluster = _make_listeners(config, driver, following)
        try:
            task = asyncio.create_task(driver.run(), name="controller driver")
            following.start()
            bound = [ListenerAddress(each.name, each.host, await each.start()) for each in listeners]
            addresses = advertised(bound, config.advertised)
            state = RuntimeState.of(ROLE, config.node_id, started_at_ms, addresses)
            try:
                write_state(config.state_file, state)
            except OSError as error:  # a convenience: a full disk ends no controller
                logger.warning("runtime.state.file=%s could not be written: %s", config.state_file, error)
            for listener in listeners:
                await listener.serving(True)
            settle_memory()
            seconds = (clock.monotonic_ms() - started_ms) / 1_000
            where = ",".join(map(str, addresses))
            emitter.emit(NodeStarted(role=ROLE, node_id=config.node_id, address=where, seconds=seconds))
            await _until(stop, task)
        finally:
            cluster.close()
            await asyncio.gather(*(listener.stop(_STOP_GRACE_S) for listener in listeners))
            await following.stop()
            driver.stop()
        await task
        clean = True
    finally:
        storage.close(clean=clean)
        if clean:
            remove_state(config.state_file)
        emitter.emit(NodeStopped(role=ROLE, node_id=config.node_id, clean=clean))


def _open_storage(config: NodeConfig, clock: SystemClock) -> MetadataStorage:
    root = config.log_dirs[0]
    if len(config.log_dirs) > 1:
        logger.warning("log.dirs: a controller uses only the first directory, %s", root)
    meta = read_meta(root, node_id=config.node_id, is_controller=True)
    return MetadataStorage.open(
        RealFileSystem(),
        root,
        clock=clock,
        cluster_id=meta.cluster_id,
        node_id=config.node_id,
        reserve_bytes=config.values["log.dir.reserve.bytes"],
    )


def _make_driver(
    config: NodeConfig, storage: MetadataStorage, clock: SystemClock, emitter: Emitter
) -> ControllerDriver:
    core = ClusterCore(settings_of(config), new_id=random_id)
    controller = QuorumController(
        core,
        storage,
        node_id=config.node_id,
        cluster_id=storage.cluster_id,
        clock=clock,
        draw=random.SystemRandom().randrange,
        settings=QuorumSettings(),
        send=lambda messages: None,
        emitter=emitter,
    )
    return ControllerDriver(controller, storage)


def _make_listeners(
    config: NodeConfig, driver: ControllerDriver, following: FollowService
) -> tuple[list[Listener], ClusterHandler]:
    admin = AdminHandler(driver, config.given)
    metadata = MetadataHandler(driver, MetadataView(topic_defaults=config.topic_defaults()), following)
    cluster = ClusterHandler(driver, following)
    listeners = []
    for address in config.listeners:
        listener = Listener(address.name, address.host or "0.0.0.0", address.port)
        admin.register(listener)
        if address.name == CLIENT:
            metadata.register(listener)
        elif address.name == INTERNAL:
            cluster.register(listener)
        else:
            raise InvalidConfigError(f"listeners={address}: a controller has no such listener")
        listeners.append(listener)
    return listeners, cluster


async def _until(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Until it is time to stop, or the driver has failed (its error is raised)."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({stopping, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stopping.cancel()
