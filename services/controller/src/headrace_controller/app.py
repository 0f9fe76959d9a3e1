"""Build the parts of a controller, and start and stop the parts in order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any

from headrace_core.clock import SystemClock
from headrace_core.config import fields_from
from headrace_core.errors import InvalidConfigError
from headrace_core.log.files import RealFileSystem
from headrace_core.membership.metadata_view import MetadataView
from headrace_core.membership.node_description import NodeService
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.arguments import own_address
from headrace_core.node.config import NodeConfig
from headrace_core.node.ids import random_id
from headrace_core.node.listeners import CLIENT, INTERNAL, ListenerAddress, advertised
from headrace_core.node.meta_properties import read_meta
from headrace_core.node.run import settle_memory
from headrace_core.node.security import NodeSecurity
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.quotas import QuotaManager
from headrace_core.rpc.channel import MAX_MESSAGE_BYTES
from headrace_core.rpc.limits import REQUEST_BYTES_MAX
from headrace_core.rpc.server import OVERHEAD_BYTES, Listener
from headrace_core.security.references import dereferenced
from headrace_core.telemetry import Emitter, NodeStarted, NodeStopped, log_events

from .cluster.core import ClusterCore
from .cluster.decision import ClusterSettings
from .collector import ControllerCollector
from .driver import ControllerDriver
from .formatting import read_users
from .handlers.admin import AdminHandler
from .handlers.cluster import ClusterHandler
from .handlers.follow import FollowService
from .handlers.forwarding import AdminThroughAnyController, LeaderLink, SecurityThroughAnyController
from .handlers.metadata import MetadataHandler
from .handlers.security import SecurityHandler
from .handlers.tokens import Tokens
from .health import Health
from .quorum_controller import QuorumController, QuorumSettings
from .raft import VoterSet
from .storage import MetadataStorage
from .transport.links import PeerLinks
from .transport.peers import Peers
from .transport.registration import Registrar

logger = logging.getLogger("headrace.controller")

ROLE = "controller"
_STOP_GRACE_S = 2.0


def settings_of(config: NodeConfig) -> ClusterSettings:
    """The cluster's settings from the configuration."""
    return ClusterSettings(**fields_from(ClusterSettings, config.values))


def quorum_settings_of(config: NodeConfig) -> QuorumSettings:
    """The quorum's settings from the configuration."""
    voters = {voter.node_id: voter.address for voter in config.voters}
    return QuorumSettings(**fields_from(QuorumSettings, config.values), voter_addresses=voters)


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a controller until ``stop`` is set; if the call is cancelled, the controller stops at once. Raises
    HeadraceError or OSError if the controller could not start, or if its disk failed or is corrupt."""
    clock = SystemClock()
    started_ms, started_at_ms = clock.monotonic_ms(), clock.now_ms()
    emitter = Emitter()
    emitter.subscribe(log_events(logger))
    security = NodeSecurity(config)
    storage = _open_storage(config, clock)
    clean = False
    try:
        _check_voters(config, storage)
        driver, links = _make_driver(config, storage, clock, emitter, security)
        driver.start()
        handlers = _Handlers(config, driver, storage, links, clock, security)
        listeners = handlers.listeners()
        health = Health(driver.controller, listeners)
        exporter = NodeMetrics(ROLE, lambda: config.node_id, config.values, events=emitter)
        collector = ControllerCollector(driver, storage, config.log_dirs[0], exporter)
        exporter.add(collector.collect)
        for listener in listeners:
            exporter.add_calls(listener.calls)
        driver.on_turn(health.look)
        tasks: list[asyncio.Task[None]] = []
        grace_s = _STOP_GRACE_S
        try:
            bound = [ListenerAddress(each.name, each.host, await each.start()) for each in listeners]
            addresses = advertised(bound, config.advertised)
            links.start(next(each.address for each in addresses if each.name == INTERNAL))
            handlers.following.start()
            tasks.append(asyncio.create_task(driver.run(), name="controller driver"))
            tasks.append(asyncio.create_task(health.run(), name="controller health"))
            registrar = Registrar(driver, storage.cluster_id, security.channels)
            tasks.append(asyncio.create_task(registrar.run(), name="controller registration"))
            tasks.append(asyncio.create_task(handlers.tokens.run(), name="expired delegation tokens"))
            await exporter.start()
            state = RuntimeState.of(ROLE, config.node_id, started_at_ms, addresses, exporter.url)
            write_state(config.state_file, state)
            await _first(health.serves(), stop.wait(), *tasks)
            settle_memory()
            if not stop.is_set():
                seconds = (clock.monotonic_ms() - started_ms) / 1_000
                where = ",".join(map(str, addresses))
                emitter.emit(NodeStarted(role=ROLE, node_id=config.node_id, address=where, seconds=seconds))
            await _first(stop.wait(), *tasks)
            await driver.hand_over()
        except asyncio.CancelledError:
            grace_s = 0.0
            raise
        finally:
            await exporter.stop()
            handlers.close()
            await links.close()
            await asyncio.gather(*(listener.stop(grace_s) for listener in listeners))
            await handlers.stop()
            driver.stop()
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # a write in progress ends before the lock is released
        await tasks[0]
        clean = True
    finally:
        storage.close(clean=clean)
        if clean:
            remove_state(config.state_file)
        emitter.emit(NodeStopped(role=ROLE, node_id=config.node_id, clean=clean))


async def _first(*awaitables: Coroutine[Any, Any, Any] | asyncio.Task[None]) -> None:
    """Wait until one of ``awaitables`` ends; raise its error if it failed."""
    futures = [asyncio.ensure_future(each) for each in awaitables]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in futures:
            if future.done():
                future.result()
    finally:
        for future, each in zip(futures, awaitables, strict=True):
            if future is not each:
                future.cancel()


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


def _check_voters(config: NodeConfig, storage: MetadataStorage) -> None:
    """Refuse a configuration with several voters if the directory stores no voters: an old release formatted such a
    directory for a sole voter. Three controllers, each with the directory of a sole voter, would form three clusters. A
    controller whose log was lost would form a second cluster, with an empty log."""
    unknown = VoterSet.of([])
    if storage.stored(unknown).start.voters is not unknown:
        return
    named = [voter.node_id for voter in config.voters]
    if named not in ([], [config.node_id]):
        raise InvalidConfigError(
            f"controller.quorum.voters names {', '.join(map(str, named))}, but {config.log_dirs[0]} was formatted "
            f"for the sole voter {config.node_id}: name only this voter (others join with `headrace quorum add`), or "
            "format empty directories with --initial-controllers"
        )
    others = [each for each in config.controller_addresses if each != own_address(config)]
    if storage.log_end_offset == 0 and others and len(config.controller_addresses) > 1:
        raise InvalidConfigError(
            f"{config.log_dirs[0]} names no voters and holds no metadata, but controller.quorum.bootstrap.servers "
            f"names other controllers ({', '.join(others)}): if this controller has run before, its metadata log is "
            "lost; remove the directory and format it with --no-initial-controllers (it joins a running quorum "
            "with `headrace quorum add`) or --initial-controllers (all start a quorum together)"
        )


def _make_driver(
    config: NodeConfig, storage: MetadataStorage, clock: SystemClock, emitter: Emitter, security: NodeSecurity
) -> tuple[ControllerDriver, PeerLinks]:
    """Create the driver, and the links that carry its messages, without starting the driver or the links."""
    peers = Peers()
    controller = QuorumController(
        ClusterCore(settings_of(config), new_id=random_id),
        storage,
        node_id=config.node_id,
        cluster_id=storage.cluster_id,
        clock=clock,
        draw=random.SystemRandom().randrange,
        settings=quorum_settings_of(config),
        send=peers.send,
        seen_address=peers.seen_address,
        emitter=emitter,
        first_users=read_users(RealFileSystem(), config.log_dirs[0]),
    )
    driver = ControllerDriver(controller, storage)
    links = PeerLinks(
        controller.key,
        storage.cluster_id,
        peers,
        receive=driver.receive,
        peer_lost=driver.peer_lost,
        observe=driver.observe,
        forget=driver.forget,
        channels=security.channels,
    )
    configured = controller.settings.voter_addresses
    known: VoterSet | None = None

    def follow_voters() -> None:
        nonlocal known
        if controller.voters is not known:
            known = controller.voters
            links.set_voters(known, configured, config.controller_addresses)

    driver.on_turn(follow_voters)
    follow_voters()
    return driver, links


class _Handlers:
    """A controller's gRPC services."""

    def __init__(
        self,
        config: NodeConfig,
        driver: ControllerDriver,
        storage: MetadataStorage,
        links: PeerLinks,
        clock: SystemClock,
        security: NodeSecurity,
    ) -> None:
        self._security = security
        security.follow(lambda: driver.image)
        self.following = FollowService(driver, clock, security.channels)
        self._config = config
        self._cluster = ClusterHandler(driver, self.following, clock)
        self._admin = AdminHandler(
            driver,
            config.given,
            address_of=links.peers.address_of,
            brokers_seen=self._cluster.brokers_seen,
            clock=clock,
        )
        secret = config.values["delegation.token.secret.key"]
        self.tokens = Tokens(
            driver,
            dereferenced(secret, "delegation.token.secret.key") if secret else None,
            clock,
            check_interval_s=config.values["delegation.token.expiry.check.interval.ms"] / 1_000,
        )
        has_authorizer = bool(config.values["authorizer.class.name"])
        self._security_calls = SecurityHandler(driver, self.tokens, has_authorizer=has_authorizer)
        self._leader = LeaderLink(driver, security.channels)
        quotas = QuotaManager(
            window_s=config.values["quota.window.size.seconds"], windows=config.values["quota.window.num"]
        )
        self._any_admin = AdminThroughAnyController(
            driver, self._admin, self._leader, quotas, partitions_default=config.values["num.partitions"]
        )
        self._any_security = SecurityThroughAnyController(driver, self._security_calls, self._leader)
        self._metadata = MetadataHandler(driver, MetadataView(topic_defaults=config.topic_defaults()), self.following)
        self._links = links
        self._node = NodeService(ROLE, lambda: config.node_id, lambda: storage.cluster_id, clock)

    def listeners(self) -> list[Listener]:
        """The controller's listeners, which are not started yet. Raises InvalidConfigError for a listener that
        controllers do not have."""
        made = []
        for address in self._config.listeners:
            listener = Listener(
                address.name,
                address.host or "0.0.0.0",
                address.port,
                takes_bulk=False,
                message_bytes_max=REQUEST_BYTES_MAX + OVERHEAD_BYTES if address.name == CLIENT else MAX_MESSAGE_BYTES,
                connections_max=self._config.values["max.connections"],
                **self._security.port_options(address.name),
            )
            self._node.register(listener)
            if address.name == CLIENT:
                self._any_admin.register(listener)
                self._any_security.register(listener)
                self._metadata.register(listener)
            elif address.name == INTERNAL:
                self._admin.register(listener)
                self._security_calls.register(listener)
                self._cluster.register(listener)
                self._links.register(listener)
            else:
                raise InvalidConfigError(
                    f"listeners={address}: a controller has only the listeners client and internal; remove this one"
                )
            made.append(listener)
        return made

    def close(self) -> None:
        """End the heartbeat and metadata streams, so that the listeners need not cancel these streams when they
        stop."""
        self._cluster.close()

    async def stop(self) -> None:
        """Stop the services; call ``stop`` after the listeners have stopped."""
        await self.following.stop()
        await self._leader.close()
