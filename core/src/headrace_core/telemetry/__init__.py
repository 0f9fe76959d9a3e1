"""What happened, said once: frozen events, and an emitter that logs, metrics and traces subscribe to."""

from .emitter import Emitter
from .events import (
    BrokerDirectoriesOffline,
    BrokerFenced,
    BrokerRegistered,
    BrokerSettingsChanged,
    BrokerUnfenced,
    Event,
    LogCleaned,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryOpened,
    LogUncleanable,
    NodeStarted,
    NodeStopped,
    PartitionClosed,
    PartitionFailed,
    PartitionOpened,
    RecordsDeleted,
    ReplicaMoved,
    SegmentsDeleted,
    TopicAutoCreated,
)
from .logs import log_events
from .metrics import Counter, Metrics

__all__ = [
    "BrokerDirectoriesOffline",
    "BrokerFenced",
    "BrokerRegistered",
    "BrokerSettingsChanged",
    "BrokerUnfenced",
    "Counter",
    "Emitter",
    "Event",
    "LogCleaned",
    "LogDirectoryFailed",
    "LogDirectoryFull",
    "LogDirectoryOpened",
    "LogUncleanable",
    "Metrics",
    "NodeStarted",
    "NodeStopped",
    "PartitionClosed",
    "PartitionFailed",
    "PartitionOpened",
    "RecordsDeleted",
    "ReplicaMoved",
    "SegmentsDeleted",
    "TopicAutoCreated",
    "log_events",
]
