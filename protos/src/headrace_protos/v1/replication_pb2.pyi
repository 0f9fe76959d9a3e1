from headrace_protos.v1 import access_pb2 as _access_pb2
from headrace_protos.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicationLane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICATION_LANE_UNSPECIFIED: _ClassVar[ReplicationLane]
    REPLICATION_LANE_LIVE: _ClassVar[ReplicationLane]
    REPLICATION_LANE_CATCH_UP: _ClassVar[ReplicationLane]
REPLICATION_LANE_UNSPECIFIED: ReplicationLane
REPLICATION_LANE_LIVE: ReplicationLane
REPLICATION_LANE_CATCH_UP: ReplicationLane

class FollowRequest(_message.Message):
    __slots__ = ("hello", "joins", "leaves", "acks", "cannot_append")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    CANNOT_APPEND_FIELD_NUMBER: _ClassVar[int]
    hello: FollowHello
    joins: _containers.RepeatedCompositeFieldContainer[FollowJoin]
    leaves: _containers.RepeatedScalarFieldContainer[int]
    acks: _containers.RepeatedCompositeFieldContainer[FollowAck]
    cannot_append: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[FollowHello, _Mapping]] = ..., joins: _Optional[_Iterable[_Union[FollowJoin, _Mapping]]] = ..., leaves: _Optional[_Iterable[int]] = ..., acks: _Optional[_Iterable[_Union[FollowAck, _Mapping]]] = ..., cannot_append: _Optional[_Iterable[int]] = ...) -> None: ...

class FollowHello(_message.Message):
    __slots__ = ("cluster_id", "broker_id", "broker_epoch", "leader_id", "lane", "window_bytes", "sends_heartbeats")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENDS_HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_id: int
    broker_epoch: int
    leader_id: int
    lane: ReplicationLane
    window_bytes: int
    sends_heartbeats: bool
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., leader_id: _Optional[int] = ..., lane: _Optional[_Union[ReplicationLane, str]] = ..., window_bytes: _Optional[int] = ..., sends_heartbeats: _Optional[bool] = ...) -> None: ...

class FollowJoin(_message.Message):
    __slots__ = ("handle", "topic_id", "partition", "leader_epoch", "log_start", "log_end", "last_epoch", "durable_end", "window_bytes")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    log_start: int
    log_end: int
    last_epoch: int
    durable_end: int
    window_bytes: int
    def __init__(self, handle: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., last_epoch: _Optional[int] = ..., durable_end: _Optional[int] = ..., window_bytes: _Optional[int] = ...) -> None: ...

class FollowAck(_message.Message):
    __slots__ = ("handle", "durable_end", "log_end", "log_start")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    handle: int
    durable_end: int
    log_end: int
    log_start: int
    def __init__(self, handle: _Optional[int] = ..., durable_end: _Optional[int] = ..., log_end: _Optional[int] = ..., log_start: _Optional[int] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("joined", "pushes", "updates", "ended", "sends_heartbeats")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SENDS_HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    joined: _containers.RepeatedCompositeFieldContainer[FollowJoined]
    pushes: _containers.RepeatedCompositeFieldContainer[FollowPush]
    updates: _containers.RepeatedCompositeFieldContainer[FollowOffsetsUpdate]
    ended: _containers.RepeatedCompositeFieldContainer[FollowEnded]
    sends_heartbeats: bool
    def __init__(self, joined: _Optional[_Iterable[_Union[FollowJoined, _Mapping]]] = ..., pushes: _Optional[_Iterable[_Union[FollowPush, _Mapping]]] = ..., updates: _Optional[_Iterable[_Union[FollowOffsetsUpdate, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[FollowEnded, _Mapping]]] = ..., sends_heartbeats: _Optional[bool] = ...) -> None: ...

class FollowJoined(_message.Message):
    __slots__ = ("handle", "error", "high_watermark", "log_start", "log_end", "diverging", "out_of_range", "other_lane", "producers")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    DIVERGING_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    OTHER_LANE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    error: _common_pb2.Error
    high_watermark: int
    log_start: int
    log_end: int
    diverging: FollowDivergence
    out_of_range: bool
    other_lane: bool
    producers: bytes
    def __init__(self, handle: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., diverging: _Optional[_Union[FollowDivergence, _Mapping]] = ..., out_of_range: _Optional[bool] = ..., other_lane: _Optional[bool] = ..., producers: _Optional[bytes] = ...) -> None: ...

class FollowDivergence(_message.Message):
    __slots__ = ("epoch", "end_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end_offset: int
    def __init__(self, epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class FollowPush(_message.Message):
    __slots__ = ("handle", "records", "high_watermark", "log_start", "traces")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    records: bytes
    high_watermark: int
    log_start: int
    traces: _containers.RepeatedCompositeFieldContainer[FollowTrace]
    def __init__(self, handle: _Optional[int] = ..., records: _Optional[bytes] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., traces: _Optional[_Iterable[_Union[FollowTrace, _Mapping]]] = ...) -> None: ...

class FollowTrace(_message.Message):
    __slots__ = ("base_offset", "traceparent")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    traceparent: str
    def __init__(self, base_offset: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class FollowOffsetsUpdate(_message.Message):
    __slots__ = ("handle", "high_watermark", "log_start")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    handle: int
    high_watermark: int
    log_start: int
    def __init__(self, handle: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ...) -> None: ...

class FollowEnded(_message.Message):
    __slots__ = ("handle", "error", "other_lane")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OTHER_LANE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    error: _common_pb2.Error
    other_lane: bool
    def __init__(self, handle: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., other_lane: _Optional[bool] = ...) -> None: ...
