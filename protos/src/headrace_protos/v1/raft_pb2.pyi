from headrace_protos.v1 import access_pb2 as _access_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftEnvelope(_message.Message):
    __slots__ = ("hello", "messages", "later_messages")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LATER_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    hello: RaftHello
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    later_messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    def __init__(self, hello: _Optional[_Union[RaftHello, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ..., later_messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ...) -> None: ...

class RaftHello(_message.Message):
    __slots__ = ("cluster_id", "sender", "expected", "address")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    sender: RaftReplicaKey
    expected: RaftReplicaKey
    address: str
    def __init__(self, cluster_id: _Optional[str] = ..., sender: _Optional[_Union[RaftReplicaKey, _Mapping]] = ..., expected: _Optional[_Union[RaftReplicaKey, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class RaftReplicaKey(_message.Message):
    __slots__ = ("node_id", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class RaftPlace(_message.Message):
    __slots__ = ("offset", "term")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    offset: int
    term: int
    def __init__(self, offset: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class RaftVoter(_message.Message):
    __slots__ = ("key", "address")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    key: RaftReplicaKey
    address: str
    def __init__(self, key: _Optional[_Union[RaftReplicaKey, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("term", "vote_request", "vote_response", "append_request", "append_response", "heartbeat_request", "heartbeat_response", "snapshot_request", "snapshot_response", "timeout_now", "recall_request", "recall_response", "outdated_notice")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    APPEND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    APPEND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    RECALL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RECALL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    OUTDATED_NOTICE_FIELD_NUMBER: _ClassVar[int]
    term: int
    vote_request: RaftVoteRequest
    vote_response: RaftVoteResponse
    append_request: RaftAppendRequest
    append_response: RaftAppendResponse
    heartbeat_request: RaftHeartbeatRequest
    heartbeat_response: RaftHeartbeatResponse
    snapshot_request: RaftSnapshotRequest
    snapshot_response: RaftSnapshotResponse
    timeout_now: RaftTimeoutNow
    recall_request: RaftRecallRequest
    recall_response: RaftRecallResponse
    outdated_notice: RaftOutdatedNotice
    def __init__(self, term: _Optional[int] = ..., vote_request: _Optional[_Union[RaftVoteRequest, _Mapping]] = ..., vote_response: _Optional[_Union[RaftVoteResponse, _Mapping]] = ..., append_request: _Optional[_Union[RaftAppendRequest, _Mapping]] = ..., append_response: _Optional[_Union[RaftAppendResponse, _Mapping]] = ..., heartbeat_request: _Optional[_Union[RaftHeartbeatRequest, _Mapping]] = ..., heartbeat_response: _Optional[_Union[RaftHeartbeatResponse, _Mapping]] = ..., snapshot_request: _Optional[_Union[RaftSnapshotRequest, _Mapping]] = ..., snapshot_response: _Optional[_Union[RaftSnapshotResponse, _Mapping]] = ..., timeout_now: _Optional[_Union[RaftTimeoutNow, _Mapping]] = ..., recall_request: _Optional[_Union[RaftRecallRequest, _Mapping]] = ..., recall_response: _Optional[_Union[RaftRecallResponse, _Mapping]] = ..., outdated_notice: _Optional[_Union[RaftOutdatedNotice, _Mapping]] = ...) -> None: ...

class RaftVoteRequest(_message.Message):
    __slots__ = ("end", "is_pre_vote", "is_transfer")
    END_FIELD_NUMBER: _ClassVar[int]
    IS_PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    IS_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    end: RaftPlace
    is_pre_vote: bool
    is_transfer: bool
    def __init__(self, end: _Optional[_Union[RaftPlace, _Mapping]] = ..., is_pre_vote: _Optional[bool] = ..., is_transfer: _Optional[bool] = ...) -> None: ...

class RaftVoteResponse(_message.Message):
    __slots__ = ("asked_term", "is_granted", "is_pre_vote")
    ASKED_TERM_FIELD_NUMBER: _ClassVar[int]
    IS_GRANTED_FIELD_NUMBER: _ClassVar[int]
    IS_PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    asked_term: int
    is_granted: bool
    is_pre_vote: bool
    def __init__(self, asked_term: _Optional[int] = ..., is_granted: _Optional[bool] = ..., is_pre_vote: _Optional[bool] = ...) -> None: ...

class RaftAppendRequest(_message.Message):
    __slots__ = ("previous", "entries", "committed_offset")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    previous: RaftPlace
    entries: _containers.RepeatedCompositeFieldContainer[RaftEntry]
    committed_offset: int
    def __init__(self, previous: _Optional[_Union[RaftPlace, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[RaftEntry, _Mapping]]] = ..., committed_offset: _Optional[int] = ...) -> None: ...

class RaftEntry(_message.Message):
    __slots__ = ("kind", "term", "base_offset", "count", "data", "voters")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RaftEntry.Kind]
        KIND_DATA: _ClassVar[RaftEntry.Kind]
        KIND_LEADER_CHANGE: _ClassVar[RaftEntry.Kind]
        KIND_VOTERS: _ClassVar[RaftEntry.Kind]
    KIND_UNSPECIFIED: RaftEntry.Kind
    KIND_DATA: RaftEntry.Kind
    KIND_LEADER_CHANGE: RaftEntry.Kind
    KIND_VOTERS: RaftEntry.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    kind: RaftEntry.Kind
    term: int
    base_offset: int
    count: int
    data: bytes
    voters: _containers.RepeatedCompositeFieldContainer[RaftVoter]
    def __init__(self, kind: _Optional[_Union[RaftEntry.Kind, str]] = ..., term: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., data: _Optional[bytes] = ..., voters: _Optional[_Iterable[_Union[RaftVoter, _Mapping]]] = ...) -> None: ...

class RaftAppendResponse(_message.Message):
    __slots__ = ("previous_offset", "match", "is_rejected")
    PREVIOUS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    IS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    previous_offset: int
    match: RaftPlace
    is_rejected: bool
    def __init__(self, previous_offset: _Optional[int] = ..., match: _Optional[_Union[RaftPlace, _Mapping]] = ..., is_rejected: _Optional[bool] = ...) -> None: ...

class RaftHeartbeatRequest(_message.Message):
    __slots__ = ("committed_offset", "round", "acknowledged_offset", "durable_offset")
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    committed_offset: int
    round: int
    acknowledged_offset: int
    durable_offset: int
    def __init__(self, committed_offset: _Optional[int] = ..., round: _Optional[int] = ..., acknowledged_offset: _Optional[int] = ..., durable_offset: _Optional[int] = ...) -> None: ...

class RaftHeartbeatResponse(_message.Message):
    __slots__ = ("round", "usable_bytes", "total_bytes")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    USABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    round: int
    usable_bytes: int
    total_bytes: int
    def __init__(self, round: _Optional[int] = ..., usable_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class RaftSnapshotRequest(_message.Message):
    __slots__ = ("place", "voters", "position", "data", "is_last")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    place: RaftPlace
    voters: _containers.RepeatedCompositeFieldContainer[RaftVoter]
    position: int
    data: bytes
    is_last: bool
    def __init__(self, place: _Optional[_Union[RaftPlace, _Mapping]] = ..., voters: _Optional[_Iterable[_Union[RaftVoter, _Mapping]]] = ..., position: _Optional[int] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ...) -> None: ...

class RaftSnapshotResponse(_message.Message):
    __slots__ = ("place", "position", "is_installed")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IS_INSTALLED_FIELD_NUMBER: _ClassVar[int]
    place: RaftPlace
    position: int
    is_installed: bool
    def __init__(self, place: _Optional[_Union[RaftPlace, _Mapping]] = ..., position: _Optional[int] = ..., is_installed: _Optional[bool] = ...) -> None: ...

class RaftTimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RaftRecallRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RaftRecallResponse(_message.Message):
    __slots__ = ("remembered_term", "vote", "end_offset", "kept_offset")
    REMEMBERED_TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEPT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    remembered_term: int
    vote: RaftReplicaKey
    end_offset: int
    kept_offset: int
    def __init__(self, remembered_term: _Optional[int] = ..., vote: _Optional[_Union[RaftReplicaKey, _Mapping]] = ..., end_offset: _Optional[int] = ..., kept_offset: _Optional[int] = ...) -> None: ...

class RaftOutdatedNotice(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
