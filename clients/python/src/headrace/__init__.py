"""Headrace for Python: a durable, Kafka-format log behind gRPC.

    from headrace import Producer, Consumer, Admin, TopicPartition, NewTopic

``import headrace`` alone loads neither grpc nor pyarrow: a public name is imported when it is first used. Because the
import loads no grpc, programs start fast, and a process may fork before it opens a connection. ``LocalCluster`` is in
headrace-tools (``pip install 'headrace[cluster]'``); all other names are in this distribution.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headrace_core.records import Record as Record
    from headrace_core.types import TopicPartition as TopicPartition
    from headrace_tools.local import LocalCluster as LocalCluster

    from . import errors as errors
    from . import serializers as serializers
    from .accumulator import RecordMetadata as RecordMetadata
    from .admin import Admin as Admin
    from .admin import AsyncAdmin as AsyncAdmin
    from .cluster_models import AppendConfig as AppendConfig
    from .cluster_models import ClusterDescription as ClusterDescription
    from .cluster_models import ConfigEntry as ConfigEntry
    from .cluster_models import ConfigResource as ConfigResource
    from .cluster_models import ConfigSynonym as ConfigSynonym
    from .cluster_models import ControllerInfo as ControllerInfo
    from .cluster_models import CoordinatorInfo as CoordinatorInfo
    from .cluster_models import CreatedTopic as CreatedTopic
    from .cluster_models import FeatureInfo as FeatureInfo
    from .cluster_models import LogDirDescription as LogDirDescription
    from .cluster_models import NewTopic as NewTopic
    from .cluster_models import NodeDescription as NodeDescription
    from .cluster_models import NodeDisk as NodeDisk
    from .cluster_models import PartitionDescription as PartitionDescription
    from .cluster_models import PartitionReassignment as PartitionReassignment
    from .cluster_models import QuorumBroker as QuorumBroker
    from .cluster_models import QuorumInfo as QuorumInfo
    from .cluster_models import QuorumReplica as QuorumReplica
    from .cluster_models import ReplicaInfo as ReplicaInfo
    from .cluster_models import SubtractConfig as SubtractConfig
    from .cluster_models import TopicDescription as TopicDescription
    from .cluster_models import TopicPartitionReplica as TopicPartitionReplica
    from .consumer import AsyncConsumer as AsyncConsumer
    from .consumer import Consumer as Consumer
    from .errors import HeadraceError as HeadraceError
    from .fetch import OffsetRange as OffsetRange
    from .fetch import RangeReader as RangeReader
    from .group_models import GroupDescription as GroupDescription
    from .group_models import GroupLag as GroupLag
    from .group_models import GroupListing as GroupListing
    from .group_models import MemberDescription as MemberDescription
    from .group_models import MovedPartition as MovedPartition
    from .group_models import PartitionLag as PartitionLag
    from .group_models import PendingOffset as PendingOffset
    from .group_models import Rebalance as Rebalance
    from .memory import tune_memory as tune_memory
    from .models import BrokerInfo as BrokerInfo
    from .models import GroupMetadata as GroupMetadata
    from .models import ManyMetadata as ManyMetadata
    from .models import OffsetAndMetadata as OffsetAndMetadata
    from .models import OffsetAndTimestamp as OffsetAndTimestamp
    from .models import RecordRange as RecordRange
    from .models import SinkState as SinkState
    from .models import TransactionToken as TransactionToken
    from .observing import PrometheusCollector as PrometheusCollector
    from .observing import Statistics as Statistics
    from .observing import report_statistics as report_statistics
    from .partitioners import PriorityPartitioner as PriorityPartitioner
    from .producer import AsyncProducer as AsyncProducer
    from .producer import AsyncRecordFuture as AsyncRecordFuture
    from .producer import ManyFuture as ManyFuture
    from .producer import Producer as Producer
    from .producer import RecordFuture as RecordFuture
    from .quota_models import QuotaEntity as QuotaEntity
    from .quota_models import QuotaName as QuotaName
    from .scram_models import ScramCredentialInfo as ScramCredentialInfo
    from .scram_models import ScramMechanism as ScramMechanism
    from .scram_models import UserScramCredentialDeletion as UserScramCredentialDeletion
    from .scram_models import UserScramCredentialUpsertion as UserScramCredentialUpsertion
    from .token_models import DelegationToken as DelegationToken
    from .transaction_models import ProducerState as ProducerState
    from .transaction_models import TransactionDescription as TransactionDescription
    from .transaction_models import TransactionListing as TransactionListing
    from .typed_settings import AdminSettings as AdminSettings
    from .typed_settings import ConsumerSettings as ConsumerSettings
    from .typed_settings import ProducerSettings as ProducerSettings

    ConsumerRecord = Record

__version__ = "0.1.0"

#: Maps each public name to the module that defines it.
_HOMES = {
    "Admin": ".admin",
    "AdminSettings": ".typed_settings",
    "ConsumerSettings": ".typed_settings",
    "ProducerSettings": ".typed_settings",
    "AppendConfig": ".cluster_models",
    "AsyncAdmin": ".admin",
    "AsyncConsumer": ".consumer",
    "AsyncProducer": ".producer",
    "AsyncRecordFuture": ".producer",
    "BrokerInfo": ".models",
    "ClusterDescription": ".cluster_models",
    "ControllerInfo": ".cluster_models",
    "ConfigEntry": ".cluster_models",
    "ConfigResource": ".cluster_models",
    "ConfigSynonym": ".cluster_models",
    "Consumer": ".consumer",
    "CoordinatorInfo": ".cluster_models",
    "CreatedTopic": ".cluster_models",
    "GroupDescription": ".group_models",
    "GroupLag": ".group_models",
    "GroupListing": ".group_models",
    "MemberDescription": ".group_models",
    "MovedPartition": ".group_models",
    "PartitionLag": ".group_models",
    "PendingOffset": ".group_models",
    "Rebalance": ".group_models",
    "HeadraceError": ".errors",
    "LocalCluster": "headrace_tools.local",
    "FeatureInfo": ".cluster_models",
    "LogDirDescription": ".cluster_models",
    "ManyFuture": ".producer",
    "ManyMetadata": ".models",
    "NewTopic": ".cluster_models",
    "GroupMetadata": ".models",
    "NodeDescription": ".cluster_models",
    "NodeDisk": ".cluster_models",
    "OffsetAndMetadata": ".models",
    "OffsetAndTimestamp": ".models",
    "OffsetRange": ".fetch",
    "PartitionDescription": ".cluster_models",
    "PartitionReassignment": ".cluster_models",
    "PriorityPartitioner": ".partitioners",
    "PrometheusCollector": ".observing",
    "Statistics": ".observing",
    "report_statistics": ".observing",
    "Producer": ".producer",
    "ProducerState": ".transaction_models",
    "QuorumBroker": ".cluster_models",
    "QuorumInfo": ".cluster_models",
    "QuorumReplica": ".cluster_models",
    "QuotaEntity": ".quota_models",
    "QuotaName": ".quota_models",
    "DelegationToken": ".token_models",
    "ScramCredentialInfo": ".scram_models",
    "ScramMechanism": ".scram_models",
    "UserScramCredentialDeletion": ".scram_models",
    "UserScramCredentialUpsertion": ".scram_models",
    "RangeReader": ".fetch",
    "Record": "headrace_core.records",
    "RecordFuture": ".producer",
    "RecordMetadata": ".accumulator",
    "RecordRange": ".models",
    "ReplicaInfo": ".cluster_models",
    "SinkState": ".models",
    "SubtractConfig": ".cluster_models",
    "TopicDescription": ".cluster_models",
    "TopicPartition": "headrace_core.types",
    "TopicPartitionReplica": ".cluster_models",
    "TransactionDescription": ".transaction_models",
    "TransactionListing": ".transaction_models",
    "TransactionToken": ".models",
    "tune_memory": ".memory",
}

#: Submodules that users reach as attributes after ``import headrace``, without an import of the submodule.
_MODULES = ("errors", "serializers")


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__all__":
        return _public()
    if name in _MODULES:  # ``_public`` binds the name by an import
        return importlib.import_module(f".{name}", __name__)
    wanted = "Record" if name == "ConsumerRecord" else name
    home = _HOMES.get(wanted)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home, __name__), wanted)
    except ModuleNotFoundError as error:
        if error.name not in ("headrace_tools", "headrace_tools.local"):
            raise
        from .errors import MissingDependencyError

        raise MissingDependencyError(
            f"{name} needs headrace-tools, which is not installed: pip install 'headrace[cluster]'"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public(), *_MODULES})


def _public() -> list[str]:
    """``__all__``. ``__all__`` omits LocalCluster when headrace-tools is not installed, so that ``from headrace import
    *`` works."""
    from importlib.util import find_spec

    names = {*_HOMES, "ConsumerRecord"}
    return sorted(names if find_spec("headrace_tools") else names - {"LocalCluster"})
