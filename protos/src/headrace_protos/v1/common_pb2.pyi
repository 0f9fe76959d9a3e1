from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_NONE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SERVER_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_MESSAGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: _ClassVar[ErrorCode]
    ERROR_CODE_LEADER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_LEADER_OR_FOLLOWER: _ClassVar[ErrorCode]
    ERROR_CODE_REQUEST_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_REPLICA_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_NETWORK_EXCEPTION: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_COORDINATOR: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TOPIC_EXCEPTION: _ClassVar[ErrorCode]
    ERROR_CODE_RECORD_LIST_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUIRED_ACKS: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TIMESTAMP: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_ALREADY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PARTITIONS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICATION_FACTOR: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICA_ASSIGNMENT: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_CONTROLLER: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_POLICY_VIOLATION: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER: _ClassVar[ErrorCode]
    ERROR_CODE_KAFKA_STORAGE_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_LOG_DIR_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PRODUCER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_DELETION_DISABLED: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_COMPRESSION_TYPE: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_BROKER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_RECORD: _ClassVar[ErrorCode]
    ERROR_CODE_THROTTLING_QUOTA_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_BROKER_REGISTRATION: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_ID_NOT_REGISTERED: _ClassVar[ErrorCode]
    ERROR_CODE_INCONSISTENT_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_INCONSISTENT_CLUSTER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_BROKER: _ClassVar[ErrorCode]
    ERROR_CODE_DISK_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_LOG: _ClassVar[ErrorCode]
    ERROR_CODE_SERVER_SHUTTING_DOWN: _ClassVar[ErrorCode]
    ERROR_CODE_SERVER_BUSY: _ClassVar[ErrorCode]

class IsolationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_LEVEL_READ_UNCOMMITTED: _ClassVar[IsolationLevel]
    ISOLATION_LEVEL_READ_COMMITTED: _ClassVar[IsolationLevel]
ERROR_CODE_NONE: ErrorCode
ERROR_CODE_UNKNOWN_SERVER_ERROR: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_CORRUPT_MESSAGE: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: ErrorCode
ERROR_CODE_LEADER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_LEADER_OR_FOLLOWER: ErrorCode
ERROR_CODE_REQUEST_TIMED_OUT: ErrorCode
ERROR_CODE_REPLICA_NOT_AVAILABLE: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_NETWORK_EXCEPTION: ErrorCode
ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: ErrorCode
ERROR_CODE_COORDINATOR_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_COORDINATOR: ErrorCode
ERROR_CODE_INVALID_TOPIC_EXCEPTION: ErrorCode
ERROR_CODE_RECORD_LIST_TOO_LARGE: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode
ERROR_CODE_INVALID_REQUIRED_ACKS: ErrorCode
ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_INVALID_TIMESTAMP: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_TOPIC_ALREADY_EXISTS: ErrorCode
ERROR_CODE_INVALID_PARTITIONS: ErrorCode
ERROR_CODE_INVALID_REPLICATION_FACTOR: ErrorCode
ERROR_CODE_INVALID_REPLICA_ASSIGNMENT: ErrorCode
ERROR_CODE_INVALID_CONFIG: ErrorCode
ERROR_CODE_NOT_CONTROLLER: ErrorCode
ERROR_CODE_INVALID_REQUEST: ErrorCode
ERROR_CODE_POLICY_VIOLATION: ErrorCode
ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode
ERROR_CODE_KAFKA_STORAGE_ERROR: ErrorCode
ERROR_CODE_LOG_DIR_NOT_FOUND: ErrorCode
ERROR_CODE_UNKNOWN_PRODUCER_ID: ErrorCode
ERROR_CODE_TOPIC_DELETION_DISABLED: ErrorCode
ERROR_CODE_FENCED_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNKNOWN_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNSUPPORTED_COMPRESSION_TYPE: ErrorCode
ERROR_CODE_STALE_BROKER_EPOCH: ErrorCode
ERROR_CODE_OFFSET_NOT_AVAILABLE: ErrorCode
ERROR_CODE_INVALID_RECORD: ErrorCode
ERROR_CODE_THROTTLING_QUOTA_EXCEEDED: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_ID: ErrorCode
ERROR_CODE_DUPLICATE_BROKER_REGISTRATION: ErrorCode
ERROR_CODE_BROKER_ID_NOT_REGISTERED: ErrorCode
ERROR_CODE_INCONSISTENT_TOPIC_ID: ErrorCode
ERROR_CODE_INCONSISTENT_CLUSTER_ID: ErrorCode
ERROR_CODE_FENCED_BROKER: ErrorCode
ERROR_CODE_DISK_FULL: ErrorCode
ERROR_CODE_CORRUPT_LOG: ErrorCode
ERROR_CODE_SERVER_SHUTTING_DOWN: ErrorCode
ERROR_CODE_SERVER_BUSY: ErrorCode
ISOLATION_LEVEL_READ_UNCOMMITTED: IsolationLevel
ISOLATION_LEVEL_READ_COMMITTED: IsolationLevel

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("listener", "host", "port")
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    listener: str
    host: str
    port: int
    def __init__(self, listener: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class LeaderHint(_message.Message):
    __slots__ = ("leader_id", "leader_epoch")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    leader_id: int
    leader_epoch: int
    def __init__(self, leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...
