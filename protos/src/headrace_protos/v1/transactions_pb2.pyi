from headrace_protos.v1 import access_pb2 as _access_pb2
from headrace_protos.v1 import common_pb2 as _common_pb2
from headrace_protos.v1 import groups_pb2 as _groups_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_STATE_UNSPECIFIED: _ClassVar[TransactionState]
    TRANSACTION_STATE_EMPTY: _ClassVar[TransactionState]
    TRANSACTION_STATE_ONGOING: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARED: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARE_COMMIT: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARE_ABORT: _ClassVar[TransactionState]
    TRANSACTION_STATE_COMPLETE_COMMIT: _ClassVar[TransactionState]
    TRANSACTION_STATE_COMPLETE_ABORT: _ClassVar[TransactionState]
TRANSACTION_STATE_UNSPECIFIED: TransactionState
TRANSACTION_STATE_EMPTY: TransactionState
TRANSACTION_STATE_ONGOING: TransactionState
TRANSACTION_STATE_PREPARED: TransactionState
TRANSACTION_STATE_PREPARE_COMMIT: TransactionState
TRANSACTION_STATE_PREPARE_ABORT: TransactionState
TRANSACTION_STATE_COMPLETE_COMMIT: TransactionState
TRANSACTION_STATE_COMPLETE_ABORT: TransactionState

class InitProducerRequest(_message.Message):
    __slots__ = ("transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch", "keep_prepared", "enable_two_phase_commit")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEEP_PREPARED_FIELD_NUMBER: _ClassVar[int]
    ENABLE_TWO_PHASE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    keep_prepared: bool
    enable_two_phase_commit: bool
    def __init__(self, transactional_id: _Optional[str] = ..., transaction_timeout_ms: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., keep_prepared: _Optional[bool] = ..., enable_two_phase_commit: _Optional[bool] = ...) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "prepared")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    prepared: TransactionToken
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., prepared: _Optional[_Union[TransactionToken, _Mapping]] = ...) -> None: ...

class TransactionToken(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class AddTransactionPartitionsRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "partitions", "verify_only")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_ONLY_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionName]
    verify_only: bool
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_groups_pb2.PartitionName, _Mapping]]] = ..., verify_only: _Optional[bool] = ...) -> None: ...

class AddTransactionPartitionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "commit", "transaction_version", "wait_for_markers")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_MARKERS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    wait_for_markers: bool
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., transaction_version: _Optional[int] = ..., wait_for_markers: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class PrepareTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class PrepareTransactionResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: TransactionToken
    def __init__(self, token: _Optional[_Union[TransactionToken, _Mapping]] = ...) -> None: ...

class CompleteTransactionRequest(_message.Message):
    __slots__ = ("token", "commit", "wait_for_markers")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_MARKERS_FIELD_NUMBER: _ClassVar[int]
    token: TransactionToken
    commit: bool
    wait_for_markers: bool
    def __init__(self, token: _Optional[_Union[TransactionToken, _Mapping]] = ..., commit: _Optional[bool] = ..., wait_for_markers: _Optional[bool] = ...) -> None: ...

class CompleteTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitSinkBatchRequest(_message.Message):
    __slots__ = ("sink_id", "batch", "tokens", "is_final", "wait_for_markers", "generation")
    SINK_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_MARKERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    sink_id: str
    batch: int
    tokens: _containers.RepeatedCompositeFieldContainer[TransactionToken]
    is_final: bool
    wait_for_markers: bool
    generation: int
    def __init__(self, sink_id: _Optional[str] = ..., batch: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TransactionToken, _Mapping]]] = ..., is_final: _Optional[bool] = ..., wait_for_markers: _Optional[bool] = ..., generation: _Optional[int] = ...) -> None: ...

class CommitSinkBatchResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: SinkState
    def __init__(self, state: _Optional[_Union[SinkState, _Mapping]] = ...) -> None: ...

class AbortSinkBatchRequest(_message.Message):
    __slots__ = ("sink_id", "batch", "generation", "is_final", "wait_for_markers")
    SINK_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_MARKERS_FIELD_NUMBER: _ClassVar[int]
    sink_id: str
    batch: int
    generation: int
    is_final: bool
    wait_for_markers: bool
    def __init__(self, sink_id: _Optional[str] = ..., batch: _Optional[int] = ..., generation: _Optional[int] = ..., is_final: _Optional[bool] = ..., wait_for_markers: _Optional[bool] = ...) -> None: ...

class AbortSinkBatchResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: SinkState
    def __init__(self, state: _Optional[_Union[SinkState, _Mapping]] = ...) -> None: ...

class DescribeSinkRequest(_message.Message):
    __slots__ = ("sink_id",)
    SINK_ID_FIELD_NUMBER: _ClassVar[int]
    sink_id: str
    def __init__(self, sink_id: _Optional[str] = ...) -> None: ...

class DescribeSinkResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: SinkState
    def __init__(self, state: _Optional[_Union[SinkState, _Mapping]] = ...) -> None: ...

class SinkState(_message.Message):
    __slots__ = ("batch", "generation")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    batch: int
    generation: int
    def __init__(self, batch: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class CommitTransactionOffsetsRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "transaction_version", "group_id", "member_id", "member_epoch", "instance_id", "offsets", "sequence", "commit_sequence")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str
    offsets: _containers.RepeatedCompositeFieldContainer[_groups_pb2.OffsetToCommit]
    sequence: int
    commit_sequence: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., transaction_version: _Optional[int] = ..., group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ..., instance_id: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[_groups_pb2.OffsetToCommit, _Mapping]]] = ..., sequence: _Optional[int] = ..., commit_sequence: _Optional[int] = ...) -> None: ...

class CommitTransactionOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionOutcome]
    def __init__(self, results: _Optional[_Iterable[_Union[_groups_pb2.PartitionOutcome, _Mapping]]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("states", "producer_ids", "open_for_ms", "transactional_id_prefix", "after")
    STATES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FOR_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[TransactionState]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    open_for_ms: int
    transactional_id_prefix: str
    after: str
    def __init__(self, states: _Optional[_Iterable[_Union[TransactionState, str]]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., open_for_ms: _Optional[int] = ..., transactional_id_prefix: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "has_more", "loading_shards")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    LOADING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[ListedTransaction]
    has_more: bool
    loading_shards: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[ListedTransaction, _Mapping]]] = ..., has_more: _Optional[bool] = ..., loading_shards: _Optional[int] = ...) -> None: ...

class ListedTransaction(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "state", "started_at_ms")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    state: TransactionState
    started_at_ms: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., state: _Optional[_Union[TransactionState, str]] = ..., started_at_ms: _Optional[int] = ...) -> None: ...

class DescribeTransactionsRequest(_message.Message):
    __slots__ = ("transactional_ids",)
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transactional_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactional_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeTransactionsResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[DescribedTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[DescribedTransaction, _Mapping]]] = ...) -> None: ...

class DescribedTransaction(_message.Message):
    __slots__ = ("transactional_id", "error", "state", "producer_id", "producer_epoch", "timeout_ms", "started_at_ms", "updated_at_ms", "transaction_version", "partitions", "token")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    error: _common_pb2.Error
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at_ms: int
    updated_at_ms: int
    transaction_version: int
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionName]
    token: TransactionToken
    def __init__(self, transactional_id: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., state: _Optional[_Union[TransactionState, str]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., updated_at_ms: _Optional[int] = ..., transaction_version: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_groups_pb2.PartitionName, _Mapping]]] = ..., token: _Optional[_Union[TransactionToken, _Mapping]] = ...) -> None: ...

class AbortTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class AbortTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeProducersRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionName]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_groups_pb2.PartitionName, _Mapping]]] = ...) -> None: ...

class DescribeProducersResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ProducersOfPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ProducersOfPartition, _Mapping]]] = ...) -> None: ...

class ProducersOfPartition(_message.Message):
    __slots__ = ("topic", "partition", "error", "producers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: _common_pb2.Error
    producers: _containers.RepeatedCompositeFieldContainer[ActiveProducer]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., producers: _Optional[_Iterable[_Union[ActiveProducer, _Mapping]]] = ...) -> None: ...

class ActiveProducer(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp_ms", "coordinator_epoch", "transaction_start_offset")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., last_sequence: _Optional[int] = ..., last_timestamp_ms: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., transaction_start_offset: _Optional[int] = ...) -> None: ...

class AbortHangingTransactionRequest(_message.Message):
    __slots__ = ("topic", "partition", "producer_id", "transaction_start_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    producer_id: int
    transaction_start_offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., producer_id: _Optional[int] = ..., transaction_start_offset: _Optional[int] = ...) -> None: ...

class AbortHangingTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddPartitionsRequests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[AddPartitionsRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[AddPartitionsRequest, _Mapping]]] = ...) -> None: ...

class AddPartitionsResponses(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[AddPartitionsResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[AddPartitionsResponse, _Mapping]]] = ...) -> None: ...

class AddPartitionsRequest(_message.Message):
    __slots__ = ("correlation_id", "transactional_id", "producer_id", "producer_epoch", "transaction_version", "verify_only", "partitions")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERIFY_ONLY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    verify_only: bool
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionName]
    def __init__(self, correlation_id: _Optional[int] = ..., transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., transaction_version: _Optional[int] = ..., verify_only: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[_groups_pb2.PartitionName, _Mapping]]] = ...) -> None: ...

class AddPartitionsResponse(_message.Message):
    __slots__ = ("correlation_id", "error", "coordinator_epoch")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: _common_pb2.Error
    coordinator_epoch: int
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., coordinator_epoch: _Optional[int] = ...) -> None: ...

class WriteMarkersRequests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[WriteMarkersRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[WriteMarkersRequest, _Mapping]]] = ...) -> None: ...

class WriteMarkersResponses(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[WriteMarkersResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[WriteMarkersResponse, _Mapping]]] = ...) -> None: ...

class WriteMarkersRequest(_message.Message):
    __slots__ = ("correlation_id", "producer_id", "producer_epoch", "commit", "transaction_version", "coordinator_epoch", "partitions")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    coordinator_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionName]
    def __init__(self, correlation_id: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., transaction_version: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_groups_pb2.PartitionName, _Mapping]]] = ...) -> None: ...

class WriteMarkersResponse(_message.Message):
    __slots__ = ("correlation_id", "results")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    results: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PartitionOutcome]
    def __init__(self, correlation_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[_groups_pb2.PartitionOutcome, _Mapping]]] = ...) -> None: ...
