from headrace_protos.v1 import access_pb2 as _access_pb2
from headrace_protos.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScramMechanism(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCRAM_MECHANISM_UNKNOWN: _ClassVar[ScramMechanism]
    SCRAM_MECHANISM_SHA_256: _ClassVar[ScramMechanism]
    SCRAM_MECHANISM_SHA_512: _ClassVar[ScramMechanism]
SCRAM_MECHANISM_UNKNOWN: ScramMechanism
SCRAM_MECHANISM_SHA_256: ScramMechanism
SCRAM_MECHANISM_SHA_512: ScramMechanism

class AuthenticateRequest(_message.Message):
    __slots__ = ("mechanism", "data", "renew", "client_id")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    data: bytes
    renew: str
    client_id: str
    def __init__(self, mechanism: _Optional[str] = ..., data: _Optional[bytes] = ..., renew: _Optional[str] = ..., client_id: _Optional[str] = ...) -> None: ...

class AuthenticateResponse(_message.Message):
    __slots__ = ("data", "complete", "session_token", "session_lifetime_ms", "principal")
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    complete: bool
    session_token: str
    session_lifetime_ms: int
    principal: str
    def __init__(self, data: _Optional[bytes] = ..., complete: _Optional[bool] = ..., session_token: _Optional[str] = ..., session_lifetime_ms: _Optional[int] = ..., principal: _Optional[str] = ...) -> None: ...

class AclEntry(_message.Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource_type: _access_pb2.AclResourceType
    resource_name: str
    pattern_type: _access_pb2.AclPatternType
    principal: str
    host: str
    operation: _access_pb2.AclOperation
    permission: _access_pb2.AclPermission
    def __init__(self, resource_type: _Optional[_Union[_access_pb2.AclResourceType, str]] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[_Union[_access_pb2.AclPatternType, str]] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[_access_pb2.AclOperation, str]] = ..., permission: _Optional[_Union[_access_pb2.AclPermission, str]] = ...) -> None: ...

class AclFilter(_message.Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource_type: _access_pb2.AclResourceType
    resource_name: str
    pattern_type: _access_pb2.AclPatternType
    principal: str
    host: str
    operation: _access_pb2.AclOperation
    permission: _access_pb2.AclPermission
    def __init__(self, resource_type: _Optional[_Union[_access_pb2.AclResourceType, str]] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[_Union[_access_pb2.AclPatternType, str]] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[_access_pb2.AclOperation, str]] = ..., permission: _Optional[_Union[_access_pb2.AclPermission, str]] = ...) -> None: ...

class DescribeAclsRequest(_message.Message):
    __slots__ = ("filter", "timeout_ms")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    filter: AclFilter
    timeout_ms: int
    def __init__(self, filter: _Optional[_Union[AclFilter, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class DescribeAclsResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AclEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ...) -> None: ...

class CreateAclsRequest(_message.Message):
    __slots__ = ("entries", "timeout_ms")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AclEntry]
    timeout_ms: int
    def __init__(self, entries: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class CreateAclsResponse(_message.Message):
    __slots__ = ("results", "metadata_offset")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_common_pb2.Error]
    metadata_offset: int
    def __init__(self, results: _Optional[_Iterable[_Union[_common_pb2.Error, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class DeleteAclsRequest(_message.Message):
    __slots__ = ("filters", "timeout_ms")
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.RepeatedCompositeFieldContainer[AclFilter]
    timeout_ms: int
    def __init__(self, filters: _Optional[_Iterable[_Union[AclFilter, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class DeleteAclsResult(_message.Message):
    __slots__ = ("error", "removed")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    removed: _containers.RepeatedCompositeFieldContainer[AclEntry]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., removed: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ...) -> None: ...

class DeleteAclsResponse(_message.Message):
    __slots__ = ("results", "metadata_offset")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DeleteAclsResult]
    metadata_offset: int
    def __init__(self, results: _Optional[_Iterable[_Union[DeleteAclsResult, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class DescribeUserScramCredentialsRequest(_message.Message):
    __slots__ = ("users", "timeout_ms")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    timeout_ms: int
    def __init__(self, users: _Optional[_Iterable[str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ScramCredentialInfo(_message.Message):
    __slots__ = ("mechanism", "iterations")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    mechanism: ScramMechanism
    iterations: int
    def __init__(self, mechanism: _Optional[_Union[ScramMechanism, str]] = ..., iterations: _Optional[int] = ...) -> None: ...

class UserScramCredentials(_message.Message):
    __slots__ = ("user", "error", "credentials")
    USER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    user: str
    error: _common_pb2.Error
    credentials: _containers.RepeatedCompositeFieldContainer[ScramCredentialInfo]
    def __init__(self, user: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., credentials: _Optional[_Iterable[_Union[ScramCredentialInfo, _Mapping]]] = ...) -> None: ...

class DescribeUserScramCredentialsResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserScramCredentials]
    def __init__(self, users: _Optional[_Iterable[_Union[UserScramCredentials, _Mapping]]] = ...) -> None: ...

class ScramUpsertion(_message.Message):
    __slots__ = ("user", "mechanism", "iterations", "salt", "salted_password")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SALTED_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    salted_password: bytes
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[_Union[ScramMechanism, str]] = ..., iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., salted_password: _Optional[bytes] = ...) -> None: ...

class ScramDeletion(_message.Message):
    __slots__ = ("user", "mechanism")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: ScramMechanism
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[_Union[ScramMechanism, str]] = ...) -> None: ...

class AlterUserScramCredentialsRequest(_message.Message):
    __slots__ = ("upsertions", "deletions", "timeout_ms")
    UPSERTIONS_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    upsertions: _containers.RepeatedCompositeFieldContainer[ScramUpsertion]
    deletions: _containers.RepeatedCompositeFieldContainer[ScramDeletion]
    timeout_ms: int
    def __init__(self, upsertions: _Optional[_Iterable[_Union[ScramUpsertion, _Mapping]]] = ..., deletions: _Optional[_Iterable[_Union[ScramDeletion, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AlterUserScramCredentialsResult(_message.Message):
    __slots__ = ("user", "error")
    USER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    user: str
    error: _common_pb2.Error
    def __init__(self, user: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class AlterUserScramCredentialsResponse(_message.Message):
    __slots__ = ("results", "metadata_offset")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AlterUserScramCredentialsResult]
    metadata_offset: int
    def __init__(self, results: _Optional[_Iterable[_Union[AlterUserScramCredentialsResult, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class QuotaEntityPart(_message.Message):
    __slots__ = ("type", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class QuotaValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class QuotaFilterPart(_message.Message):
    __slots__ = ("type", "exact", "default")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    type: str
    exact: str
    default: bool
    def __init__(self, type: _Optional[str] = ..., exact: _Optional[str] = ..., default: _Optional[bool] = ...) -> None: ...

class DescribeClientQuotasRequest(_message.Message):
    __slots__ = ("parts", "strict", "timeout_ms")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[QuotaFilterPart]
    strict: bool
    timeout_ms: int
    def __init__(self, parts: _Optional[_Iterable[_Union[QuotaFilterPart, _Mapping]]] = ..., strict: _Optional[bool] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class QuotaEntry(_message.Message):
    __slots__ = ("entity", "values")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    values: _containers.RepeatedCompositeFieldContainer[QuotaValue]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[QuotaValue, _Mapping]]] = ...) -> None: ...

class DescribeClientQuotasResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[QuotaEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[QuotaEntry, _Mapping]]] = ...) -> None: ...

class QuotaOperation(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class QuotaAlteration(_message.Message):
    __slots__ = ("entity", "operations")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    operations: _containers.RepeatedCompositeFieldContainer[QuotaOperation]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., operations: _Optional[_Iterable[_Union[QuotaOperation, _Mapping]]] = ...) -> None: ...

class AlterClientQuotasRequest(_message.Message):
    __slots__ = ("alterations", "validate_only", "timeout_ms")
    ALTERATIONS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    alterations: _containers.RepeatedCompositeFieldContainer[QuotaAlteration]
    validate_only: bool
    timeout_ms: int
    def __init__(self, alterations: _Optional[_Iterable[_Union[QuotaAlteration, _Mapping]]] = ..., validate_only: _Optional[bool] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AlterClientQuotasResponse(_message.Message):
    __slots__ = ("results", "metadata_offset")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_common_pb2.Error]
    metadata_offset: int
    def __init__(self, results: _Optional[_Iterable[_Union[_common_pb2.Error, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class DelegationToken(_message.Message):
    __slots__ = ("token_id", "owner", "requester", "renewers", "issued_at_ms", "expires_at_ms", "max_lifetime_at_ms", "hmac")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_LIFETIME_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HMAC_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    owner: str
    requester: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    issued_at_ms: int
    expires_at_ms: int
    max_lifetime_at_ms: int
    hmac: bytes
    def __init__(self, token_id: _Optional[str] = ..., owner: _Optional[str] = ..., requester: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., issued_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., max_lifetime_at_ms: _Optional[int] = ..., hmac: _Optional[bytes] = ...) -> None: ...

class CreateDelegationTokenRequest(_message.Message):
    __slots__ = ("owner", "renewers", "max_lifetime_ms", "timeout_ms", "requester")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    owner: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    max_lifetime_ms: int
    timeout_ms: int
    requester: str
    def __init__(self, owner: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., max_lifetime_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., requester: _Optional[str] = ...) -> None: ...

class CreateDelegationTokenResponse(_message.Message):
    __slots__ = ("token", "metadata_offset")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    token: DelegationToken
    metadata_offset: int
    def __init__(self, token: _Optional[_Union[DelegationToken, _Mapping]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class RenewDelegationTokenRequest(_message.Message):
    __slots__ = ("hmac", "period_ms", "timeout_ms", "requester")
    HMAC_FIELD_NUMBER: _ClassVar[int]
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    hmac: bytes
    period_ms: int
    timeout_ms: int
    requester: str
    def __init__(self, hmac: _Optional[bytes] = ..., period_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., requester: _Optional[str] = ...) -> None: ...

class RenewDelegationTokenResponse(_message.Message):
    __slots__ = ("expires_at_ms", "metadata_offset")
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    expires_at_ms: int
    metadata_offset: int
    def __init__(self, expires_at_ms: _Optional[int] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class ExpireDelegationTokenRequest(_message.Message):
    __slots__ = ("hmac", "period_ms", "timeout_ms", "requester")
    HMAC_FIELD_NUMBER: _ClassVar[int]
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    hmac: bytes
    period_ms: int
    timeout_ms: int
    requester: str
    def __init__(self, hmac: _Optional[bytes] = ..., period_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., requester: _Optional[str] = ...) -> None: ...

class ExpireDelegationTokenResponse(_message.Message):
    __slots__ = ("expires_at_ms", "metadata_offset")
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    expires_at_ms: int
    metadata_offset: int
    def __init__(self, expires_at_ms: _Optional[int] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class DescribeDelegationTokensRequest(_message.Message):
    __slots__ = ("owners", "timeout_ms")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    timeout_ms: int
    def __init__(self, owners: _Optional[_Iterable[str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class DescribeDelegationTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[DelegationToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[DelegationToken, _Mapping]]] = ...) -> None: ...
