"""What happened, said once: frozen events, and an emitter that logs, metrics and traces subscribe to."""

from .emitter import Emitter
from .events import (
    BrokerFenced,
    BrokerRegistered,
    BrokerSettingsChanged,
    BrokerUnfenced,
    Event,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryOpened,
    NodeStarted,
    NodeStopped,
    PartitionClosed,
    PartitionFailed,
    PartitionOpened,
    RecordsDeleted,
    TopicAutoCreated,
)
from .logs import log_events
from .metrics import Counter, Metrics

__all__ = [
    "BrokerFenced",
    "BrokerRegistered",
    "BrokerSettingsChanged",
    "BrokerUnfenced",
    "Counter",
    "Emitter",
    "Event",
    "LogDirectoryFailed",
    "LogDirectoryFull",
    "LogDirectoryOpened",
    "Metrics",
    "NodeStarted",
    "NodeStopped",
    "PartitionClosed",
    "PartitionFailed",
    "PartitionOpened",
    "RecordsDeleted",
    "TopicAutoCreated",
    "log_events",
]
