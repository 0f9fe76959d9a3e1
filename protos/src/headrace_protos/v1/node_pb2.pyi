from headrace_protos.v1 import access_pb2 as _access_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeNodeResponse(_message.Message):
    __slots__ = ("role", "node_id", "cluster_id", "software_version", "metadata_version_min", "metadata_version_max", "time_ms", "started_at_ms", "open_descriptors", "descriptors_max", "metadata_age_ms", "disk")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    METADATA_VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_MAX_FIELD_NUMBER: _ClassVar[int]
    METADATA_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    role: str
    node_id: int
    cluster_id: str
    software_version: str
    metadata_version_min: int
    metadata_version_max: int
    time_ms: int
    started_at_ms: int
    open_descriptors: int
    descriptors_max: int
    metadata_age_ms: int
    disk: NodeDisk
    def __init__(self, role: _Optional[str] = ..., node_id: _Optional[int] = ..., cluster_id: _Optional[str] = ..., software_version: _Optional[str] = ..., metadata_version_min: _Optional[int] = ..., metadata_version_max: _Optional[int] = ..., time_ms: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., open_descriptors: _Optional[int] = ..., descriptors_max: _Optional[int] = ..., metadata_age_ms: _Optional[int] = ..., disk: _Optional[_Union[NodeDisk, _Mapping]] = ...) -> None: ...

class NodeDisk(_message.Message):
    __slots__ = ("path", "free_bytes", "total_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    free_bytes: int
    total_bytes: int
    def __init__(self, path: _Optional[str] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...
