"""Plan replica moves automatically: to drain a broker, or to fill a broker that has too few replicas.

A broker *has too few* replicas in two cases. In the first case, the broker has no replica, although an even
distribution would give it at least one. In the second case, more than ``auto.rebalance.threshold.percentage`` of an
even share of replicas is missing on the broker. A broker with too few replicas gets all the replicas that it lacks
(rebalance.py). A rebalance can leave a small imbalance, which starts no further rebalance. A broker that was down for a
while causes no moves, because its replicas stay assigned to it. When no broker is being drained or has too few
replicas, internal topics that were created with fewer brokers get the replicas that they lack.

Filling waits until the set of active brokers has not changed for ``auto.rebalance.delay.ms``, so that one plan covers
five brokers that join together. A drain begins without the delay ``auto.rebalance.delay.ms``. A fenced broker keeps its
replicas and gets no new ones, so restarts cause no moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    InvalidRequestError,
)
from headrace_core.metadata import (
    BrokerDrainRecord,
    BrokerImage,
    BrokerLoad,
    ConfigResourceType,
    MetadataImage,
    QueuedReassignmentRecord,
    UnregisterBrokerRecord,
)
from headrace_core.plurals import counted

from . import internal_topics
from .decision import Decision, View
from .rebalance import plan
from .requests import DrainBroker, Drained, UnregisterBroker

#: Maximum number of replica moves in one plan of the balancer. With 100,000 partitions, a plan of replica moves takes
#: 0.3 s and becomes one decision of the metadata log.
PLAN_MOVES_MAX = 1_000
#: Milliseconds that the balancer waits before the next plan, if a plan found no possible move of a replica.
FRUITLESS_MS = 30_000.0
MOVES_LEVEL = 2  #: The first metadata.version with records for queued moves (headrace_core.metadata.features).
ENABLE_KEY = "auto.rebalance.enable"
_NO_LOAD = BrokerLoad()


@dataclass(slots=True)
class PlanningClock:
    """Measures how long the set of brokers has been unchanged. The time since the last change of brokers is not in the
    metadata log, because this time only decides when to plan moves. A new leader measures the time since the last
    change of brokers from zero."""

    members: frozenset[int] = frozenset()
    since_ms: float = 0.0
    not_before_ms: float = 0.0

    def steady_ms(self, members: frozenset[int], now_ms: float) -> float:
        """Number of milliseconds for which the set of brokers that may take replicas has been unchanged."""
        if members != self.members:
            self.members, self.since_ms = members, now_ms
        return now_ms - self.since_ms

    def start_anew(self) -> None:
        self.members, self.not_before_ms = frozenset(), 0.0


def drain(view: View, request: DrainBroker) -> Decision:
    """Drain a broker. The reply to a drain request is a ``Drained`` with the number of replicas left. Raises
    BrokerIdNotRegisteredError, and InvalidRequestError if no other broker could take the replicas."""
    broker = _registered(view.image, request.broker_id)
    load = view.image.loads.get(broker.broker_id, _NO_LOAD)
    if request.draining and load.replicas:
        others = [each for each in view.image.placeable_brokers() if each.broker_id != broker.broker_id]
        if not others:
            raise InvalidRequestError(
                f"broker {broker.broker_id} has {counted(load.replicas, 'replica')}, and no other active broker can "
                "take them; add a broker first"
            )
    change = BrokerDrainRecord(broker.broker_id, request.draining)
    return Decision((change,) if broker.draining is not request.draining else (), Drained(load.replicas))


def unregister(view: View, request: UnregisterBroker) -> Decision:
    """Unregister a broker, as ``kafka-cluster unregister`` does, but only a broker that is down and has no replicas.
    Guard: a partition must not have a replica on a broker that does not exist. Raises BrokerIdNotRegisteredError,
    InvalidRequestError."""
    image = view.image
    broker = _registered(image, request.broker_id)
    check_unregistered(image, broker)
    return Decision((UnregisterBrokerRecord(broker.broker_id, broker.broker_epoch),))


def check_unregistered(image: MetadataImage, broker: BrokerImage) -> None:
    """Guard: raise InvalidRequestError unless the broker is down and has no replicas."""
    load = image.loads.get(broker.broker_id, _NO_LOAD)
    waiting = sum(broker.broker_id in queued.targets for queued in image.ledger.queued.values())
    if load.replicas or waiting:
        raise InvalidRequestError(
            f"broker {broker.broker_id} has {counted(load.replicas + waiting, 'replica')}; drain it first "
            f"(`headrace brokers drain {broker.broker_id}`)"
        )
    if not broker.fenced:
        raise InvalidRequestError(f"broker {broker.broker_id} is alive; stop it first")


def is_drained(image: MetadataImage, broker_id: int) -> bool:
    """Whether a broker that is being drained has no replicas left."""
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.draining and broker_id not in image.loads


def _registered(image: MetadataImage, broker_id: int) -> BrokerImage:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"broker {broker_id} is not registered")
    return broker


def balance(view: View, clock: PlanningClock) -> Decision:
    """Queue the moves of a new rebalance plan if a drain or a fill is due, and no planned move is in the queue."""
    image = view.image
    members = frozenset(each.broker_id for each in image.placeable_brokers())
    steady_ms = clock.steady_ms(members, view.now_ms)
    if image.metadata_version < MOVES_LEVEL:
        return Decision()
    if view.now_ms < clock.not_before_ms:
        return Decision()
    if any(queued.automatic for queued in image.ledger.queued.values()):
        return Decision()
    empties = any(each.draining and each.broker_id in image.loads for each in image.brokers.values())
    fills = (
        is_enabled(view)
        and steady_ms >= view.settings.auto_rebalance_delay_ms
        and bool(hungry(image, members, view.settings.auto_rebalance_threshold_percentage))
    )
    moves_max = min(PLAN_MOVES_MAX, view.settings.metadata_max_records_per_request)
    if not (empties or fills):
        return _more_replicas(view, steady_ms, moves_max)
    moves = plan(image, fill=fills, moves_max=moves_max)
    if not moves:
        clock.not_before_ms = view.now_ms + FRUITLESS_MS
    return Decision(
        tuple(QueuedReassignmentRecord(move.topic_id, move.partition, move.targets, automatic=True) for move in moves)
    )


def _more_replicas(view: View, steady_ms: float, moves_max: int) -> Decision:
    """Add replicas to internal topics that were created with fewer replicas than configured."""
    if not is_enabled(view) or steady_ms < view.settings.auto_rebalance_delay_ms:
        return Decision()
    return Decision(
        tuple(
            QueuedReassignmentRecord(*key, targets, automatic=True)
            for key, targets in internal_topics.growth(view.image, view.settings, moves_max)
        )
    )


def hungry(image: MetadataImage, members: frozenset[int], threshold_percentage: int) -> list[int]:
    """The brokers that have too few replicas."""
    if not members:
        return []
    counts = {each: image.loads.get(each, _NO_LOAD).replicas for each in members}
    share = sum(counts.values()) // len(counts)
    short = max(share * threshold_percentage // 100, 1)
    return sorted(each for each, count in counts.items() if share - count > short or (share > 0 and count == 0))


def is_enabled(view: View) -> bool:
    """auto.rebalance.enable: as set dynamically for all brokers, else as in this controller's properties file."""
    text = view.image.config(ConfigResourceType.BROKER, "").get(ENABLE_KEY)
    return view.settings.auto_rebalance_enable if text is None else text == "true"
