"""Headrace for Python: a durable, Kafka-format log behind gRPC.

    from headrace import Producer, Consumer, Admin, TopicPartition, NewTopic

``import headrace`` alone loads neither grpc nor pyarrow: a public name is imported when it is first used. Because the
import loads no grpc, programs start fast, and a process may fork before it opens a connection. ``LocalCluster`` is in
headrace-tools (``pip install 'headrace[cluster]'``); all other names are in this distribution.
Type checkers read ``__init__.pyi``.
"""

from __future__ import annotations

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


def __getattr__(name: str) -> object:
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
