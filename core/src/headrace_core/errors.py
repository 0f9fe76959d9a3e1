"""The error tree: every failure that Headrace reports, within a process or in a response.

Each class has a stable Kafka-style ``code`` for scripts, and Kafka's error ``number``, equal to the value in
``headrace.v1.ErrorCode`` (a test compares both). ``retriable`` says whether the same request may succeed later.

Source: the error table of the Kafka protocol guide. Numbers of errors that Kafka does not have start at 1000.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose.

    The message of an error says what failed, why and what to do. Without a message, the error has the first line of its
    class's docstring, so that line must be a whole sentence."""

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    number: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or self.code).strip().splitlines()[0])

    @property
    def message(self) -> str:
        return str(self.args[0])

    def copy(self) -> Self:
        """Return an equal error without a traceback. Code that keeps an error and raises it more than once raises a
        copy. Each raise of the same error lengthens its traceback, and the traceback keeps the frames of all callers
        with their variables."""
        return copy.copy(self)


class RetriableError(HeadraceError):
    """Base of the errors that a client retries automatically until delivery.timeout.ms."""

    retriable = True


class UnknownServerError(HeadraceError):
    """The server failed unexpectedly; the server's log has the stack trace."""


class OffsetOutOfRangeError(HeadraceError):
    """The requested offset is outside of the partition's log; reset the position to an offset that the log has."""

    code, number = "OFFSET_OUT_OF_RANGE", 1


class CorruptMessageError(RetriableError):
    """A record batch failed its CRC check, has an impossible size, or is otherwise damaged."""

    code, number = "CORRUPT_MESSAGE", 2


class UnknownTopicOrPartitionError(RetriableError):
    """This server does not have the topic or partition; check the name, or create the topic."""

    code, number = "UNKNOWN_TOPIC_OR_PARTITION", 3


class LeaderNotAvailableError(RetriableError):
    """The partition has no leader: an election is in progress, or no eligible replica is alive."""

    code, number = "LEADER_NOT_AVAILABLE", 5


class NotLeaderOrFollowerError(RetriableError):
    """This broker is not the leader of (or has no replica of) the partition; refresh the metadata."""

    code, number = "NOT_LEADER_OR_FOLLOWER", 6


class RequestTimedOutError(RetriableError, TimeoutError):
    """The request timed out; whether it took effect is unknown."""

    code, number = "REQUEST_TIMED_OUT", 7


class ReplicaNotAvailableError(RetriableError):
    """This broker has no replica of the partition that can serve the request."""

    code, number = "REPLICA_NOT_AVAILABLE", 9


class RecordTooLargeError(HeadraceError):
    """The record or its batch exceeds max.message.bytes, or another limit of the topic or server."""

    code, number = "MESSAGE_TOO_LARGE", 10


class OffsetMetadataTooLargeError(HeadraceError):
    """The metadata of an offset commit is longer than offset.metadata.max.bytes."""

    code, number = "OFFSET_METADATA_TOO_LARGE", 12


class NetworkError(RetriableError):
    """The connection to the server could not be made, or broke before the answer came."""

    code, number = "NETWORK_EXCEPTION", 13

    #: Whether the server may have received the request. If there was no connection, ``was_sent`` is False: the request
    #: had no effect.
    was_sent: bool = True


class CoordinatorLoadInProgressError(RetriableError):
    """The coordinator is loading its state and cannot answer yet."""

    code, number = "COORDINATOR_LOAD_IN_PROGRESS", 14


class CoordinatorNotAvailableError(RetriableError):
    """The group has no coordinator; `headrace up --coordinators 1` starts one."""

    code, number = "COORDINATOR_NOT_AVAILABLE", 15


class NotCoordinatorError(RetriableError):
    """This coordinator does not own the group; look up the coordinator again."""

    code, number = "NOT_COORDINATOR", 16


class InvalidTopicError(HeadraceError):
    """The topic's name is not legal: 1 to 249 characters of [a-zA-Z0-9._-], neither "." nor ".."."""

    code, number = "INVALID_TOPIC_EXCEPTION", 17


class RecordListTooLargeError(HeadraceError):
    """The request holds a record batch larger than segment.bytes; send smaller batches."""

    code, number = "RECORD_LIST_TOO_LARGE", 18


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than min.insync.replicas; nothing was written."""

    code, number = "NOT_ENOUGH_REPLICAS", 19


class NotEnoughReplicasAfterAppendError(RetriableError):
    """The leader wrote the records, but fewer replicas than min.insync.replicas are in sync now."""

    code, number = "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 20


class InvalidRequiredAcksError(HeadraceError):
    """acks must be 0, 1 or all (-1)."""

    code, number = "INVALID_REQUIRED_ACKS", 21


class IllegalGenerationError(HeadraceError):
    """The generation of a classic group's member is not the group's generation; join again."""

    code, number = "ILLEGAL_GENERATION", 22


class InconsistentGroupProtocolError(HeadraceError):
    """The member supports no protocol that all members of the classic group support, or the group has another type."""

    code, number = "INCONSISTENT_GROUP_PROTOCOL", 23


class InvalidGroupIdError(HeadraceError):
    """The group id is empty or too long; set group.id."""

    code, number = "INVALID_GROUP_ID", 24


class UnknownMemberIdError(HeadraceError):
    """The group has no such member: it left, its session timed out, or it never joined; join again."""

    code, number = "UNKNOWN_MEMBER_ID", 25


class InvalidSessionTimeoutError(HeadraceError):
    """The session timeout is not between group.min.session.timeout.ms and group.max.session.timeout.ms."""

    code, number = "INVALID_SESSION_TIMEOUT", 26


class RebalanceInProgressError(HeadraceError):
    """The classic group is rebalancing; join again."""

    code, number = "REBALANCE_IN_PROGRESS", 27


class InvalidCommitOffsetSizeError(HeadraceError):
    """The offset commit is too large for one batch; commit fewer partitions at once."""

    code, number = "INVALID_COMMIT_OFFSET_SIZE", 28


class TopicAuthorizationFailedError(HeadraceError):
    """Not authorized to access the topic."""

    code, number = "TOPIC_AUTHORIZATION_FAILED", 29


class GroupAuthorizationFailedError(HeadraceError):
    """Not authorized to access the group."""

    code, number = "GROUP_AUTHORIZATION_FAILED", 30


class ClusterAuthorizationFailedError(HeadraceError):
    """Not authorized for this operation on the cluster."""

    code, number = "CLUSTER_AUTHORIZATION_FAILED", 31


class RefusedRecordsError(HeadraceError):
    """Base of the errors of a batch with invalid records.

    ``faults``: the index in the batch of each invalid record, and what is wrong with the record (KIP-467); empty if the
    invalid records are unknown."""

    faults: tuple[tuple[int, str], ...] = ()


class InvalidTimestampError(RefusedRecordsError):
    """The record's timestamp is outside of the range that the topic accepts."""

    code, number = "INVALID_TIMESTAMP", 32


class UnsupportedSaslMechanismError(HeadraceError):
    """The listener does not have the SASL mechanism.

    The error message names the mechanisms of the listener."""

    code, number = "UNSUPPORTED_SASL_MECHANISM", 33


class IllegalSaslStateError(HeadraceError):
    """The request does not fit the state of the SASL exchange."""

    code, number = "ILLEGAL_SASL_STATE", 34


class UnsupportedVersionError(HeadraceError):
    """This version of the server does not support the request."""

    code, number = "UNSUPPORTED_VERSION", 35


class TopicAlreadyExistsError(HeadraceError):
    """A topic with this name already exists."""

    code, number = "TOPIC_ALREADY_EXISTS", 36


class InvalidPartitionsError(HeadraceError):
    """The number of partitions is below 1, or below the topic's present number."""

    code, number = "INVALID_PARTITIONS", 37


class InvalidReplicationFactorError(HeadraceError):
    """The replication factor is below 1 or larger than the number of available brokers."""

    code, number = "INVALID_REPLICATION_FACTOR", 38


class InvalidReplicaAssignmentError(HeadraceError):
    """The replica assignment is invalid: brokers repeat, are unknown, or partitions are missing."""

    code, number = "INVALID_REPLICA_ASSIGNMENT", 39


class InvalidConfigError(HeadraceError, ValueError):
    """A configuration key is unknown, or its value is not allowed."""

    code, number = "INVALID_CONFIG", 40


class NotControllerError(RetriableError):
    """This node is not the active controller.

    ``leader``: (id, epoch, "host:port" of the internal listener) of the active controller, as far as this node knows.
    The status of a failed gRPC call contains ``leader``.
    """

    code, number = "NOT_CONTROLLER", 41

    def __init__(self, message: str = "", *, leader: tuple[int, int, str] | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class InvalidRequestError(HeadraceError):
    """The request is malformed, or its fields contradict each other."""

    code, number = "INVALID_REQUEST", 42


class PolicyViolationError(HeadraceError):
    """The request violates a policy of this cluster."""

    code, number = "POLICY_VIOLATION", 44


class OutOfOrderSequenceNumberError(HeadraceError):
    """The producer's sequence numbers have a gap."""

    code, number = "OUT_OF_ORDER_SEQUENCE_NUMBER", 45


class DuplicateSequenceNumberError(HeadraceError):
    """The batch was written before, and its offset is no longer known; do not send it again."""

    code, number = "DUPLICATE_SEQUENCE_NUMBER", 46


class InvalidProducerEpochError(HeadraceError):
    """The producer's epoch is out of date: a newer producer has fenced this producer, or the request was delayed."""

    code, number = "INVALID_PRODUCER_EPOCH", 47


class InvalidTxnStateError(HeadraceError):
    """The transaction is in a state that does not allow the request."""

    code, number = "INVALID_TXN_STATE", 48


class InvalidProducerIdMappingError(HeadraceError):
    """The transactional id has another producer id, or has expired: make a new producer."""

    code, number = "INVALID_PRODUCER_ID_MAPPING", 49


class InvalidTransactionTimeoutError(HeadraceError):
    """transaction.timeout.ms is more than the brokers' transaction.max.timeout.ms."""

    code, number = "INVALID_TRANSACTION_TIMEOUT", 50


class ConcurrentTransactionsError(RetriableError):
    """Some markers of the transactional id's former transaction are not written yet."""

    code, number = "CONCURRENT_TRANSACTIONS", 51


class TransactionCoordinatorFencedError(HeadraceError):
    """The request comes from a coordinator that has lost the transaction's shard to another coordinator."""

    code, number = "TRANSACTION_COORDINATOR_FENCED", 52


class TransactionalIdAuthorizationFailedError(HeadraceError):
    """Not authorized to use the transactional id."""

    code, number = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 53


class SecurityDisabledError(HeadraceError):
    """The cluster has no authorizer (authorizer.class.name)."""

    code, number = "SECURITY_DISABLED", 54


class OperationNotAttemptedError(RetriableError):
    """The item was skipped, because the request has too many items for one metadata write; send the item again."""

    code, number = "OPERATION_NOT_ATTEMPTED", 55


class StorageError(RetriableError):
    """A log directory of the broker failed (disk error); the partition is offline on this broker."""

    code, number = "KAFKA_STORAGE_ERROR", 56


class LogDirNotFoundError(HeadraceError):
    """The broker has no log directory with this path or id."""

    code, number = "LOG_DIR_NOT_FOUND", 57


class SaslAuthenticationFailedError(HeadraceError):
    """The caller is not authenticated: its credentials are wrong, missing or expired."""

    code, number = "SASL_AUTHENTICATION_FAILED", 58


class UnknownProducerIdError(HeadraceError):
    """The broker has no state for this producer id."""

    code, number = "UNKNOWN_PRODUCER_ID", 59


class DelegationTokenAuthDisabledError(HeadraceError):
    """The cluster has no delegation tokens (delegation.token.secret.key)."""

    code, number = "DELEGATION_TOKEN_AUTH_DISABLED", 61


class DelegationTokenNotFoundError(HeadraceError):
    """There is no such delegation token."""

    code, number = "DELEGATION_TOKEN_NOT_FOUND", 62


class DelegationTokenOwnerMismatchError(HeadraceError):
    """Only the owner and the renewers of a delegation token may renew or expire the token."""

    code, number = "DELEGATION_TOKEN_OWNER_MISMATCH", 63


class DelegationTokenRequestNotAllowedError(HeadraceError):
    """Delegation tokens are given only to callers that authenticated without a token."""

    code, number = "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", 64


class DelegationTokenAuthorizationFailedError(HeadraceError):
    """Not authorized to use the delegation token."""

    code, number = "DELEGATION_TOKEN_AUTHORIZATION_FAILED", 65


class DelegationTokenExpiredError(HeadraceError):
    """The delegation token has expired."""

    code, number = "DELEGATION_TOKEN_EXPIRED", 66


class InvalidPrincipalTypeError(HeadraceError):
    """The type of a principal must be User."""

    code, number = "INVALID_PRINCIPAL_TYPE", 67


class NonEmptyGroupError(HeadraceError):
    """The group has members; stop its consumers first."""

    code, number = "NON_EMPTY_GROUP", 68


class GroupIdNotFoundError(HeadraceError):
    """The group does not exist."""

    code, number = "GROUP_ID_NOT_FOUND", 69


class TopicDeletionDisabledError(HeadraceError):
    """The cluster does not allow deleting topics: delete.topic.enable is false."""

    code, number = "TOPIC_DELETION_DISABLED", 73


class FencedLeaderEpochError(RetriableError):
    """The leader epoch in the request is older than the broker's."""

    code, number = "FENCED_LEADER_EPOCH", 74


class UnknownLeaderEpochError(RetriableError):
    """The leader epoch in the request is newer than the broker's."""

    code, number = "UNKNOWN_LEADER_EPOCH", 75


class UnsupportedCompressionTypeError(HeadraceError):
    """This server does not support the compression type."""

    code, number = "UNSUPPORTED_COMPRESSION_TYPE", 76


class StaleBrokerEpochError(HeadraceError):
    """The broker epoch is out of date, because the broker has registered again."""

    code, number = "STALE_BROKER_EPOCH", 77


class OffsetNotAvailableError(RetriableError):
    """The leader's high watermark has not caught up after its election; retry."""

    code, number = "OFFSET_NOT_AVAILABLE", 78


class MemberIdRequiredError(HeadraceError):
    """A new member of a classic group joins again with the member id of this response (KIP-394)."""

    code, number = "MEMBER_ID_REQUIRED", 79


class PreferredLeaderNotAvailableError(RetriableError):
    """The preferred leader is not in sync, or not alive."""

    code, number = "PREFERRED_LEADER_NOT_AVAILABLE", 80


class GroupMaxSizeReachedError(HeadraceError):
    """The group has group.consumer.max.size members already."""

    code, number = "GROUP_MAX_SIZE_REACHED", 81


class FencedInstanceIdError(HeadraceError):
    """Another member took over the group.instance.id of this static member."""

    code, number = "FENCED_INSTANCE_ID", 82


class EligibleLeadersNotAvailableError(RetriableError):
    """The partition cannot get a leader, because no eligible replica is alive."""

    code, number = "ELIGIBLE_LEADERS_NOT_AVAILABLE", 83


class ElectionNotNeededError(RetriableError):
    """The partition already has the leader that the election would choose."""

    code, number = "ELECTION_NOT_NEEDED", 84


class NoReassignmentInProgressError(HeadraceError):
    """No partition reassignment is in progress."""

    code, number = "NO_REASSIGNMENT_IN_PROGRESS", 85


class GroupSubscribedToTopicError(HeadraceError):
    """Cannot delete offsets of a topic while members of the group subscribe to it; stop the members first."""

    code, number = "GROUP_SUBSCRIBED_TO_TOPIC", 86


class InvalidRecordError(RefusedRecordsError):
    """A record failed the broker's validation; the broker rejected the whole batch."""

    code, number = "INVALID_RECORD", 87


class UnstableOffsetCommitError(RetriableError):
    """A transaction that has not ended has pending offsets of the partition; retry (KIP-447)."""

    code, number = "UNSTABLE_OFFSET_COMMIT", 88


class ThrottlingQuotaExceededError(RetriableError):
    """A quota is exceeded; retry later."""

    code, number = "THROTTLING_QUOTA_EXCEEDED", 89


class ProducerFencedError(HeadraceError):
    """A newer producer uses the transactional id: close the older producer (KIP-588)."""

    code, number = "PRODUCER_FENCED", 90


class ResourceNotFoundError(HeadraceError):
    """There is no such resource, for example no user with such credentials."""

    code, number = "RESOURCE_NOT_FOUND", 91


class DuplicateResourceError(HeadraceError):
    """The request names a resource twice."""

    code, number = "DUPLICATE_RESOURCE", 92


class UnacceptableCredentialError(HeadraceError):
    """The credential is refused, for example because it has too few iterations."""

    code, number = "UNACCEPTABLE_CREDENTIAL", 93


class InvalidUpdateVersionError(HeadraceError):
    """The cluster cannot change to the requested feature level."""

    code, number = "INVALID_UPDATE_VERSION", 95


class UnknownTopicIdError(RetriableError):
    """No topic has this id: it was deleted, or this server's metadata is behind."""

    code, number = "UNKNOWN_TOPIC_ID", 100


class DuplicateBrokerRegistrationError(HeadraceError):
    """Another live broker is registered with this id or directory."""

    code, number = "DUPLICATE_BROKER_REGISTRATION", 101


class BrokerIdNotRegisteredError(HeadraceError):
    """No broker with this id is registered."""

    code, number = "BROKER_ID_NOT_REGISTERED", 102


class InconsistentTopicIdError(RetriableError):
    """The topic id in the request differs from the log's: the topic was deleted and created again."""

    code, number = "INCONSISTENT_TOPIC_ID", 103


class InconsistentClusterIdError(HeadraceError):
    """The request names another cluster id; check the address."""

    code, number = "INCONSISTENT_CLUSTER_ID", 104


class TransactionalIdNotFoundError(HeadraceError):
    """The requested transactional id does not exist."""

    code, number = "TRANSACTIONAL_ID_NOT_FOUND", 105


class IneligibleReplicaError(RetriableError):
    """The new in-sync set names a replica whose broker is fenced, is stopping or has restarted (KIP-903)."""

    code, number = "INELIGIBLE_REPLICA", 107


class NewLeaderElectedError(RetriableError):
    """The in-sync set was changed and another broker is leader now; refresh the metadata."""

    code, number = "NEW_LEADER_ELECTED", 108


class FencedMemberEpochError(HeadraceError):
    """The group did not assign this epoch to the member: release all partitions and join again (KIP-848)."""

    code, number = "FENCED_MEMBER_EPOCH", 110


class UnreleasedInstanceIdError(HeadraceError):
    """Another member that has not left uses this group.instance.id (KIP-848)."""

    code, number = "UNRELEASED_INSTANCE_ID", 111


class UnsupportedAssignorError(HeadraceError):
    """The coordinator does not have the assignor (KIP-848)."""

    code, number = "UNSUPPORTED_ASSIGNOR", 112


class StaleMemberEpochError(HeadraceError):
    """The member epoch is out of date: send a heartbeat, then retry with the new epoch (KIP-848)."""

    code, number = "STALE_MEMBER_EPOCH", 113


class TransactionAbortableError(HeadraceError):
    """The transaction cannot be committed; abort it, and send its records again (KIP-1050)."""

    code, number = "TRANSACTION_ABORTABLE", 120


class InvalidVoterKeyError(HeadraceError):
    """The node at this address has another node id or directory id than expected (KIP-853)."""

    code, number = "INVALID_VOTER_KEY", 125


class DuplicateVoterError(HeadraceError):
    """The node is a voter already (KIP-853)."""

    code, number = "DUPLICATE_VOTER", 126


class VoterNotFoundError(HeadraceError):
    """The node is not a voter (KIP-853)."""

    code, number = "VOTER_NOT_FOUND", 127


class InvalidRegularExpressionError(HeadraceError):
    """RE2 rejects the regular expression of the subscription (KIP-848)."""

    code, number = "INVALID_REGULAR_EXPRESSION", 128


class FencedBrokerError(RetriableError):
    """The controller has fenced the broker, so it does not serve clients; retry with another broker."""

    code, number = "FENCED_BROKER", 1001


class DiskFullError(RetriableError):
    """The log directory is nearly full: the broker refuses writes and still serves reads; free some space."""

    code, number = "DISK_FULL", 1002


class CorruptLogError(HeadraceError):
    """A log file is damaged below its recovery point, which a crash cannot explain."""

    code, number = "CORRUPT_LOG", 1003


class OutdatedVoterError(HeadraceError):
    """A controller's directory is an older copy, which has lost votes or entries that other controllers remember.

    The error ends the controller's process; no response contains it."""

    code = "OUTDATED_VOTER"


class ServerShuttingDownError(RetriableError):
    """The server is shutting down; connect to another server."""

    code, number = "SERVER_SHUTTING_DOWN", 1004


class ServerBusyError(RetriableError):
    """The server's queues are full; retry later."""

    code, number = "SERVER_BUSY", 1005


class VoterChangeInProgressError(RetriableError):
    """Another voter change is not committed yet, and voters change one at a time; retry later."""

    code, number = "VOTER_CHANGE_IN_PROGRESS", 1006


class ReplicaNotCaughtUpError(RetriableError):
    """A replica that lacks much of the log cannot become a voter; retry when it has caught up."""

    code, number = "REPLICA_NOT_CAUGHT_UP", 1007


class DivergingMetadataError(HeadraceError):
    """The follower's metadata log diverges from the controllers' log; were their directories replaced?"""

    code, number = "DIVERGING_METADATA", 1008


class FencedShardEpochError(HeadraceError):
    """The shard epoch is out of date: another coordinator has claimed the shard."""

    code, number = "FENCED_SHARD_EPOCH", 1009


class UnexpectedLogEndError(HeadraceError):
    """A shard's log does not end at the offset that the append expects; nothing was written.

    The coordinator replays the shard's log before its next append."""

    code, number = "UNEXPECTED_LOG_END", 1010


# Errors that arise in a client, not in a server. Client errors have a code, but no number, because no response contains
# them.


class ClientError(HeadraceError):
    """Base of the errors that arise in a client, and that no response contains."""

    number = -1


class BootstrapError(ClientError):
    """None of the bootstrap servers could be reached.

    The error message names each address, and why the connection to it failed."""

    code, retriable = "BOOTSTRAP_FAILED", True


class ClosedError(ClientError):
    """The client is closed; create a new client."""

    code = "CLIENT_CLOSED"


class DeliveryTimeoutError(ClientError, TimeoutError):
    """The record was not acknowledged within delivery.timeout.ms."""

    code = "DELIVERY_TIMED_OUT"


class UnknownOutcomeError(DeliveryTimeoutError):
    """The record was sent but not acknowledged, so it is unknown whether the log has the record.

    Raised when delivery.timeout.ms is over, or earlier when retries are used up or a response rules out a retry."""

    code = "OUTCOME_UNKNOWN"


class SerializationError(ClientError):
    """A key or value could not be serialized or deserialized.

    ``topic`` and ``field`` ("key" or "value") say what could not be converted. An error of a consumer (KIP-1036) also
    has ``partition``, ``offset`` and ``record``: the record of the log, with key and value as bytes, headers and
    timestamp. The consumer can continue after ``seek(error.topic_partition, error.offset + 1)``."""

    code = "SERIALIZATION_FAILED"

    def __init__(
        self, message: str = "", *, topic: str | None = None, field: str | None = None, record: Any = None
    ) -> None:
        super().__init__(message)
        self.topic, self.field, self.record = topic, field, record
        self.partition: int | None = getattr(record, "partition", None)
        self.offset: int | None = getattr(record, "offset", None)
        self.topic_partition: Any = getattr(record, "topic_partition", None)


class BufferTimeoutError(ClientError, TimeoutError):
    """buffer.memory stayed full for max.block.ms."""

    code, retriable = "BUFFER_EXHAUSTED", True


class InvalidArgumentError(ClientError, ValueError):
    """An argument has a value that is not allowed."""

    code = "INVALID_ARGUMENT"


class InvalidTypeError(InvalidArgumentError, TypeError):
    """An argument has a type that is not allowed."""

    code = "INVALID_TYPE"


class NoOffsetForPartitionError(ClientError):
    """The partition has no position and auto.offset.reset is none; seek to an offset first."""

    code = "NO_OFFSET_FOR_PARTITION"


class LogTruncationError(ClientError):
    """Records that this consumer has read are no longer in the log: the log was truncated after an unclean election.

    ``partition``: (topic, number). ``position``: the offset that the consumer would have read next.
    ``divergent_offset``: the first offset at which the log differs from what the consumer read (None: unknown); the
    consumer can seek to this offset. Source: KIP-320.
    """

    code = "LOG_TRUNCATED"

    def __init__(
        self,
        message: str = "",
        *,
        partition: tuple[str, int] = ("", -1),
        position: int = -1,
        divergent_offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.position = position
        self.divergent_offset = divergent_offset


class IllegalStateError(ClientError, RuntimeError):
    """The call is not allowed in the client's present state."""

    code = "ILLEGAL_STATE"


class ProcessingError(ClientError):
    """The handler of ``Consumer.process`` failed for a record in all tries, and there is no dead-letter topic.

    The record (``topic``, ``partition``, ``offset``) is not committed; ``__cause__`` is the handler's exception."""

    code = "PROCESSING_FAILED"

    def __init__(self, message: str = "", *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.topic, self.partition, self.offset = topic, partition, offset


class TransactionAbortedError(ClientError):
    """The record was dropped, because its transaction was aborted before the record was acknowledged (KIP-654)."""

    code = "TRANSACTION_ABORTED"


class ClusterStartError(ClientError):
    """A process of a local cluster did not start.

    The error message quotes the end of the process's log."""

    code = "CLUSTER_START_FAILED"


class MissingDependencyError(ClientError, ImportError):
    """An optional dependency is not installed.

    The error message says how to install the dependency."""

    code = "MISSING_DEPENDENCY"


def _subclasses(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    found = [root]
    for child in root.__subclasses__():
        found += _subclasses(child)
    return found


#: Error class by Kafka's number, for errors that responses contain.
BY_NUMBER: dict[int, type[HeadraceError]] = {
    cls.number: cls for cls in _subclasses(HeadraceError) if not issubclass(cls, ClientError) and cls.number > 0
} | {-1: UnknownServerError}

#: Error class by its stable code.
BY_CODE: dict[str, type[HeadraceError]] = {
    cls.code: cls for cls in _subclasses(HeadraceError) if cls.code != "UNKNOWN_SERVER_ERROR"
} | {"UNKNOWN_SERVER_ERROR": UnknownServerError}


def from_number(number: int, message: str = "") -> HeadraceError:
    """Return the error for an error number from a response; an unknown number becomes UnknownServerError, whose message
    has the number."""
    cls = BY_NUMBER.get(number)
    if cls is None:
        return UnknownServerError(f"unknown error number {number}: {message}")
    return cls(message)
