from headrace_protos.v1 import access_pb2 as _access_pb2
from headrace_protos.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("cluster_id", "incarnation_id", "directory_ids", "endpoints", "rack", "wanted_broker_id", "previous_broker_epoch", "default_log_flush", "features", "directory_epochs")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_IDS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    WANTED_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_LOG_FLUSH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    incarnation_id: bytes
    directory_ids: _containers.RepeatedScalarFieldContainer[bytes]
    endpoints: _containers.RepeatedCompositeFieldContainer[_common_pb2.Endpoint]
    rack: str
    wanted_broker_id: int
    previous_broker_epoch: int
    default_log_flush: str
    features: _containers.RepeatedCompositeFieldContainer[FeatureRange]
    directory_epochs: _containers.RepeatedCompositeFieldContainer[DirectoryEpochs]
    def __init__(self, cluster_id: _Optional[str] = ..., incarnation_id: _Optional[bytes] = ..., directory_ids: _Optional[_Iterable[bytes]] = ..., endpoints: _Optional[_Iterable[_Union[_common_pb2.Endpoint, _Mapping]]] = ..., rack: _Optional[str] = ..., wanted_broker_id: _Optional[int] = ..., previous_broker_epoch: _Optional[int] = ..., default_log_flush: _Optional[str] = ..., features: _Optional[_Iterable[_Union[FeatureRange, _Mapping]]] = ..., directory_epochs: _Optional[_Iterable[_Union[DirectoryEpochs, _Mapping]]] = ...) -> None: ...

class DirectoryEpochs(_message.Message):
    __slots__ = ("directory_id", "started_epoch", "stopped_epoch")
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STOPPED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    directory_id: bytes
    started_epoch: int
    stopped_epoch: int
    def __init__(self, directory_id: _Optional[bytes] = ..., started_epoch: _Optional[int] = ..., stopped_epoch: _Optional[int] = ...) -> None: ...

class FeatureRange(_message.Message):
    __slots__ = ("name", "min_level", "max_level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    min_level: int
    max_level: int
    def __init__(self, name: _Optional[str] = ..., min_level: _Optional[int] = ..., max_level: _Optional[int] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "metadata_offset")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    metadata_offset: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class BrokerHeartbeatRequest(_message.Message):
    __slots__ = ("correlation_id", "broker_id", "broker_epoch", "metadata_offset", "want_shutdown", "want_fence", "offline_log_dirs", "metadata_lag_ms", "cannot_lead", "lacking_leaders")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WANT_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    WANT_FENCE_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_LOG_DIRS_FIELD_NUMBER: _ClassVar[int]
    METADATA_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    CANNOT_LEAD_FIELD_NUMBER: _ClassVar[int]
    LACKING_LEADERS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_shutdown: bool
    want_fence: bool
    offline_log_dirs: _containers.RepeatedScalarFieldContainer[bytes]
    metadata_lag_ms: int
    cannot_lead: _containers.RepeatedCompositeFieldContainer[CannotLead]
    lacking_leaders: _containers.RepeatedCompositeFieldContainer[LackingLeader]
    def __init__(self, correlation_id: _Optional[int] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., metadata_offset: _Optional[int] = ..., want_shutdown: _Optional[bool] = ..., want_fence: _Optional[bool] = ..., offline_log_dirs: _Optional[_Iterable[bytes]] = ..., metadata_lag_ms: _Optional[int] = ..., cannot_lead: _Optional[_Iterable[_Union[CannotLead, _Mapping]]] = ..., lacking_leaders: _Optional[_Iterable[_Union[LackingLeader, _Mapping]]] = ...) -> None: ...

class LackingLeader(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class CannotLead(_message.Message):
    __slots__ = ("directory_id", "reason")
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    directory_id: bytes
    reason: str
    def __init__(self, directory_id: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class BrokerHeartbeatResponse(_message.Message):
    __slots__ = ("correlation_id", "fenced", "should_shutdown")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    SHOULD_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    fenced: bool
    should_shutdown: bool
    def __init__(self, correlation_id: _Optional[int] = ..., fenced: _Optional[bool] = ..., should_shutdown: _Optional[bool] = ...) -> None: ...

class AssignReplicasToDirsRequest(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "directories")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    directories: _containers.RepeatedCompositeFieldContainer[DirectoryAssignment]
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., directories: _Optional[_Iterable[_Union[DirectoryAssignment, _Mapping]]] = ...) -> None: ...

class DirectoryAssignment(_message.Message):
    __slots__ = ("directory_id", "topics")
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    directory_id: bytes
    topics: _containers.RepeatedCompositeFieldContainer[AssignedTopic]
    def __init__(self, directory_id: _Optional[bytes] = ..., topics: _Optional[_Iterable[_Union[AssignedTopic, _Mapping]]] = ...) -> None: ...

class AssignedTopic(_message.Message):
    __slots__ = ("topic_id", "partitions", "fresh")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    fresh: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., fresh: _Optional[bool] = ...) -> None: ...

class AssignReplicasToDirsResponse(_message.Message):
    __slots__ = ("refused", "metadata_offset")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedAssignment]
    metadata_offset: int
    def __init__(self, refused: _Optional[_Iterable[_Union[RefusedAssignment, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class RefusedAssignment(_message.Message):
    __slots__ = ("topic_id", "partition", "error")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _common_pb2.Error
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class AlterPartitionRequest(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "topics", "metadata_offset")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    topics: _containers.RepeatedCompositeFieldContainer[AlterPartitionTopic]
    metadata_offset: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[AlterPartitionTopic, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class AlterPartitionTopic(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[AlteredPartition]
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[AlteredPartition, _Mapping]]] = ...) -> None: ...

class AlteredPartition(_message.Message):
    __slots__ = ("partition", "leader_epoch", "partition_epoch", "isr", "recovering", "uncertain")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: _containers.RepeatedCompositeFieldContainer[IsrMember]
    recovering: bool
    uncertain: bool
    def __init__(self, partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[_Union[IsrMember, _Mapping]]] = ..., recovering: _Optional[bool] = ..., uncertain: _Optional[bool] = ...) -> None: ...

class IsrMember(_message.Message):
    __slots__ = ("broker_id", "broker_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionResponse(_message.Message):
    __slots__ = ("results", "metadata_offset")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AlterPartitionResult]
    metadata_offset: int
    def __init__(self, results: _Optional[_Iterable[_Union[AlterPartitionResult, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class AlterPartitionResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "leader_id", "leader_epoch", "partition_epoch", "isr", "recovering")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _common_pb2.Error
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: _containers.RepeatedScalarFieldContainer[int]
    recovering: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[int]] = ..., recovering: _Optional[bool] = ...) -> None: ...

class FollowMetadataRequest(_message.Message):
    __slots__ = ("cluster_id", "from_offset", "from_epoch")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    from_offset: int
    from_epoch: int
    def __init__(self, cluster_id: _Optional[str] = ..., from_offset: _Optional[int] = ..., from_epoch: _Optional[int] = ...) -> None: ...

class FollowMetadataResponse(_message.Message):
    __slots__ = ("records", "committed_offset", "leader_id", "leader_epoch", "controllers", "snapshot", "sender_id", "sender_lag_ms", "leader_offset")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    committed_offset: int
    leader_id: int
    leader_epoch: int
    controllers: _containers.RepeatedCompositeFieldContainer[ControllerAddress]
    snapshot: MetadataSnapshotPart
    sender_id: int
    sender_lag_ms: int
    leader_offset: int
    def __init__(self, records: _Optional[bytes] = ..., committed_offset: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., controllers: _Optional[_Iterable[_Union[ControllerAddress, _Mapping]]] = ..., snapshot: _Optional[_Union[MetadataSnapshotPart, _Mapping]] = ..., sender_id: _Optional[int] = ..., sender_lag_ms: _Optional[int] = ..., leader_offset: _Optional[int] = ...) -> None: ...

class ControllerAddress(_message.Message):
    __slots__ = ("controller_id", "host", "port")
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    controller_id: int
    host: str
    port: int
    def __init__(self, controller_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class MetadataSnapshotPart(_message.Message):
    __slots__ = ("offset", "epoch", "position", "data", "is_last")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    offset: int
    epoch: int
    position: int
    data: bytes
    is_last: bool
    def __init__(self, offset: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ...) -> None: ...

class ReadIndexRequest(_message.Message):
    __slots__ = ("cluster_id", "is_forwarded", "is_deferred")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_FORWARDED_FIELD_NUMBER: _ClassVar[int]
    IS_DEFERRED_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    is_forwarded: bool
    is_deferred: bool
    def __init__(self, cluster_id: _Optional[str] = ..., is_forwarded: _Optional[bool] = ..., is_deferred: _Optional[bool] = ...) -> None: ...

class ReadIndexResponse(_message.Message):
    __slots__ = ("committed_offset", "leader_id", "leader_epoch", "age_ms")
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    committed_offset: int
    leader_id: int
    leader_epoch: int
    age_ms: int
    def __init__(self, committed_offset: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class AllocateProducerIdsRequest(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "coordinator_id", "coordinator_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    coordinator_id: int
    coordinator_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., coordinator_id: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ...) -> None: ...

class AllocateProducerIdsResponse(_message.Message):
    __slots__ = ("first", "length")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    first: int
    length: int
    def __init__(self, first: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class CreateInternalTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateInternalTopicResponse(_message.Message):
    __slots__ = ("metadata_offset",)
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    metadata_offset: int
    def __init__(self, metadata_offset: _Optional[int] = ...) -> None: ...

class RegisterControllerRequest(_message.Message):
    __slots__ = ("cluster_id", "controller_id", "directory_id", "features")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_id: int
    directory_id: bytes
    features: _containers.RepeatedCompositeFieldContainer[FeatureRange]
    def __init__(self, cluster_id: _Optional[str] = ..., controller_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ..., features: _Optional[_Iterable[_Union[FeatureRange, _Mapping]]] = ...) -> None: ...

class RegisterControllerResponse(_message.Message):
    __slots__ = ("metadata_offset",)
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    metadata_offset: int
    def __init__(self, metadata_offset: _Optional[int] = ...) -> None: ...

class RegisterCoordinatorRequest(_message.Message):
    __slots__ = ("cluster_id", "incarnation_id", "endpoints", "rack", "wanted_coordinator_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    WANTED_COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    incarnation_id: bytes
    endpoints: _containers.RepeatedCompositeFieldContainer[_common_pb2.Endpoint]
    rack: str
    wanted_coordinator_id: int
    def __init__(self, cluster_id: _Optional[str] = ..., incarnation_id: _Optional[bytes] = ..., endpoints: _Optional[_Iterable[_Union[_common_pb2.Endpoint, _Mapping]]] = ..., rack: _Optional[str] = ..., wanted_coordinator_id: _Optional[int] = ...) -> None: ...

class RegisterCoordinatorResponse(_message.Message):
    __slots__ = ("coordinator_id", "coordinator_epoch", "metadata_offset")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: int
    coordinator_epoch: int
    metadata_offset: int
    def __init__(self, coordinator_id: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class CoordinatorHeartbeatRequest(_message.Message):
    __slots__ = ("correlation_id", "coordinator_id", "coordinator_epoch", "want_shutdown")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WANT_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    coordinator_id: int
    coordinator_epoch: int
    want_shutdown: bool
    def __init__(self, correlation_id: _Optional[int] = ..., coordinator_id: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., want_shutdown: _Optional[bool] = ...) -> None: ...

class CoordinatorHeartbeatResponse(_message.Message):
    __slots__ = ("correlation_id", "should_shutdown")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SHOULD_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    should_shutdown: bool
    def __init__(self, correlation_id: _Optional[int] = ..., should_shutdown: _Optional[bool] = ...) -> None: ...
