"""Admin: AsyncAdmin without async. Generated from aio.py by tools/blocking_admin.py generate: change aio.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from .. import arguments
from ..acl_models import AclBinding, AclBindingFilter
from ..callbacks import refuse_to_wait
from ..cluster_models import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigValue,
    CreatedTopic,
    ElectionType,
    FeatureInfo,
    LogDirDescription,
    NewTopic,
    NodeDescription,
    PartitionReassignment,
    QuorumInfo,
    TopicDescription,
    TopicPartitionReplica,
)
from ..engine.transactions import (
    abort_sink_batch,
    checked_token,
    checked_tokens,
    commit_sink_batch,
    complete_transaction,
    describe_sink,
)
from ..faces import Face, where
from ..group_models import GroupDescription, GroupLag, GroupListing, GroupState, Rebalance
from ..models import OffsetAndMetadata, OffsetAndTimestamp, OffsetSpec, SinkState, TransactionToken
from ..quota_models import QuotaEntity, QuotaName
from ..scram_models import ScramCredentialInfo, UserScramCredentialDeletion, UserScramCredentialUpsertion
from ..settings import ADMIN, from_file, resolve
from ..token_models import DelegationToken
from ..transaction_models import ProducerState, TransactionDescription, TransactionListing, TransactionState
from ..typed_settings import AdminSettings
from . import acls as access
from . import cluster, configs, groups, log_dirs, offsets, quotas, replicas, tokens, transactions
from . import users as scram_users
from .calls import AdminCalls, new_counts, new_topics, records_before

T = TypeVar("T")


class Admin(Face):
    """Client that describes and changes a cluster.

        with Admin(bootstrap_servers="127.0.0.1:9095") as admin:
            admin.create_topics([NewTopic("orders", partitions=6)])

    The client sees its own changes in its next call, whichever node answers (read your writes). Timeouts are in
    seconds; None means ``default.api.timeout.ms``. Every call may raise BootstrapError, RequestTimedOutError,
    InvalidArgumentError, and errors of the cluster such as TopicAlreadyExistsError or InvalidConfigError.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[AdminSettings]) -> None:
        self._calls = AdminCalls(resolve(ADMIN, config, settings))

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **overrides: Unpack[AdminSettings]) -> Self:
        """Make the client from a properties file with Kafka's keys, such as the client.properties of `headrace up
        --secure`. ``overrides`` have priority. The call ignores keys that apply only to other kinds of clients. Raises
        InvalidConfigError for an invalid file; the message names the line."""
        return cls(from_file(ADMIN, path, overrides))

    def _shown(self) -> list[str]:
        return [where(self._calls.engine.config), self._calls.state]

    def start(self) -> None:
        """Connect to the cluster now, instead of at the first call. Raises BootstrapError, which names each address and
        its failure, within ``bootstrap.timeout.ms``; SaslAuthenticationFailedError. A repeated ``start`` does
        nothing."""
        self._run(lambda calls: calls.engine.connect())

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, timeout: float | None = None, validate_only: bool = False
    ) -> list[CreatedTopic]:
        """Create topics. If the creation of some topics fails, the call raises the first error; the message names every
        topic that failed."""
        wanted = new_topics(topics)
        return self._run(lambda calls: calls.create_topics(wanted, timeout, validate_only), validate_only=validate_only)

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics and their records. Raises UnknownTopicOrPartitionError if one of the topics does not exist."""
        wanted = arguments.texts("names", names)
        self._run(lambda calls: calls.delete_topics(wanted, timeout))

    def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[str]:
        """The names of all topics, sorted. ``include_internal`` adds internal topics such as ``__consumer_offsets``."""
        return self._run(lambda calls: calls.list_topics(include_internal, timeout), include_internal=include_internal)

    def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """Describe topics: partitions, leaders and replicas, in the order of ``names`` (None: all topics, sorted)."""
        wanted = None if names is None else arguments.texts("names", names)
        return self._run(lambda calls: calls.describe_topics(wanted, timeout))

    def create_partitions(
        self, counts: Mapping[str, int], *, timeout: float | None = None, validate_only: bool = False
    ) -> None:
        """Increase partition counts (topic -> new count). Raises InvalidPartitionsError unless each new count is larger
        than the current count."""
        wanted = new_counts(counts)
        self._run(lambda calls: calls.create_partitions(wanted, timeout, validate_only), validate_only=validate_only)

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_synonyms: bool = False, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Describe configurations: every key of each resource, with its value and the source of the value.
        ``include_synonyms`` adds every level at which a key is set, in order of precedence (KIP-226). The values in a
        broker's own properties file are included only while that broker is live."""
        wanted = configs.wanted_resources(resources)
        return self._run(
            lambda calls: configs.describe_configs(calls, wanted, include_synonyms, timeout),
            include_synonyms=include_synonyms,
        )

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigValue]],
        *,
        timeout: float | None = None,
        validate_only: bool = False,
    ) -> None:
        """Set keys, reset them to their default (None), or edit lists (AppendConfig, SubtractConfig). Keys that
        ``changes`` does not name keep their values (KIP-339). ``validate_only``: check the changes without applying
        them."""
        wanted = configs.wanted_changes(changes)
        self._run(
            lambda calls: configs.alter_configs(calls, wanted, timeout, validate_only), validate_only=validate_only
        )

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition (-1: all committed records); return the new log start
        offsets. If some partitions fail, the call raises the first error when all partitions have ended; the message
        lists all errors. The records of the other partitions are deleted."""
        wanted = records_before(before)
        return self._run(lambda calls: calls.delete_records(wanted, timeout))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Look up one offset per partition: "earliest" (the log start), "latest" (one past the last committed record),
        "max-timestamp" (the record with the largest timestamp, KIP-734), or a time in ms since 1970 (the first record
        at or after it).

        In the results ``offset`` is -1 when no record was found; ``timestamp_ms`` is the record's timestamp, and -1 for
        "earliest" and "latest". ``isolation_level`` is "read_uncommitted" or "read_committed". Raises
        UnknownTopicOrPartitionError, InvalidArgumentError (the topic has no partition with that number),
        RequestTimedOutError.
        """
        times, isolation = offsets.wanted_offsets(wanted), offsets.wanted_isolation(isolation_level)
        return self._run(lambda calls: offsets.list_offsets(calls, times, isolation, timeout))

    def describe_cluster(
        self, *, include_fenced_brokers: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """Describe the cluster: its id, active controller and live brokers; ``include_fenced_brokers`` adds registered
        brokers that are not live (KIP-1073)."""
        return self._run(
            lambda calls: calls.describe_cluster(include_fenced_brokers, timeout),
            include_fenced_brokers=include_fenced_brokers,
        )

    def describe_node(self, address: str, *, timeout: float | None = None) -> NodeDescription:
        """Ask the node at ``address`` for its role, version, clock offset to this machine, and use of file descriptors.
        ``address`` is "host:port" of the node's client or internal listener. A node answers ``describe_node`` even
        while it does not serve other calls. The client does not retry ``describe_node``. Raises NetworkError,
        RequestTimedOutError, UnsupportedVersionError (the node's version does not support the call)."""
        wanted = cluster.wanted_address(address)
        return self._run(lambda calls: cluster.describe_node(calls, wanted, timeout))

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        topics: Iterable[str | TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[int, list[LogDirDescription]]:
        """The log directories of ``brokers`` (None: all live brokers), with the replicas of ``topics`` (None: all
        topics) in them.

        A log directory that has failed has an ``error``. Raises BrokerIdNotRegisteredError if one of the brokers is not
        live.
        """
        ids, wanted = log_dirs.wanted_brokers(brokers), log_dirs.wanted_replicas(topics)
        return self._run(lambda calls: log_dirs.describe_log_dirs(calls, ids, wanted, timeout))

    def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> None:
        """Move replicas to another log directory of their broker (KIP-113). Each path must be one of the broker's
        ``log.dirs``.

        ``alter_replica_log_dirs`` returns when the moves have begun: ``describe_log_dirs`` shows the new copy as
        ``is_future`` until the new copy replaces the old copy. Raises LogDirNotFoundError, StorageError (a log
        directory is offline), ReplicaNotAvailableError (the broker has no replica of the partition).
        """
        wanted = log_dirs.wanted_moves(moves)
        self._run(lambda calls: log_dirs.alter_replica_log_dirs(calls, wanted, timeout))

    def describe_quorum(self, *, timeout: float | None = None) -> QuorumInfo:
        """The voters and observers of the controller quorum, as its leader sees them (KIP-836)."""
        return self._run(lambda calls: cluster.describe_quorum(calls, timeout))

    def add_voter(
        self, node_id: int, directory_id: bytes | str | None = None, *, address: str = "", timeout: float | None = None
    ) -> None:
        """Make an observer controller a voter (KIP-853). ``add_voter`` returns when the controller's log has caught up
        and the change is committed.

        ``directory_id``: the controller's directory id as 16 bytes or 22 letters; None: the directory id of the only
        observer with this ``node_id``. ``address``: "host:port" of the controller's internal listener; "": the address
        that the controller reports. Raises DuplicateVoterError, RequestTimedOutError (the controller did not catch up),
        InvalidArgumentError.
        """
        node, directory = cluster.wanted_node(node_id), cluster.wanted_directory(directory_id)
        arguments.text("address", address)
        self._run(lambda calls: cluster.add_voter(calls, node, directory, address, timeout))

    def remove_voter(
        self, node_id: int, directory_id: bytes | str | None = None, *, timeout: float | None = None
    ) -> None:
        """Remove a voter from the controller quorum (KIP-853); return when the change is committed. The leader can be
        removed; the last voter cannot be removed. Raises VoterNotFoundError, InvalidRequestError (``node_id`` is the
        last voter), RequestTimedOutError."""
        node, directory = cluster.wanted_node(node_id), cluster.wanted_directory(directory_id)
        self._run(lambda calls: cluster.remove_voter(calls, node, directory, timeout))

    def transfer_leadership(self, node_id: int | None = None, *, timeout: float | None = None) -> int:
        """Make the voter ``node_id`` (None: the most up-to-date voter) the leader of the controller quorum, without
        waiting for an election timeout. Return the new leader's id. Raises VoterNotFoundError, RequestTimedOutError
        (the old leader stays the leader)."""
        node = None if node_id is None else cluster.wanted_node(node_id)
        return self._run(lambda calls: cluster.transfer_leadership(calls, node, timeout))

    def describe_features(self, *, timeout: float | None = None) -> dict[str, FeatureInfo]:
        """Feature levels by feature name (KIP-584): the cluster's level, and the range of levels that its controller
        supports."""
        return self._run(lambda calls: cluster.describe_features(calls, timeout))

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raise features to the given levels. With ``downgrade``, also lower a level if that loses no metadata. The
        only feature is ``metadata.version``, the format of the cluster's metadata. Raise the level of
        ``metadata.version`` only after all nodes run a Headrace version that supports the new level.

        Raises InvalidUpdateVersionError; the error's message says what prevents the change.
        """
        wanted = cluster.wanted_levels(levels)
        self._run(
            lambda calls: cluster.update_features(calls, wanted, downgrade, validate_only, timeout),
            downgrade=downgrade,
            validate_only=validate_only,
        )

    def create_acls(self, acls: Iterable[AclBinding], timeout: float | None = None) -> None:
        """Create access control entries; entries that already exist stay unchanged.

        Raises InvalidRequestError for an invalid entry, SecurityDisabledError if the cluster has no authorizer.
        """
        wanted = access.wanted_bindings(acls)
        self._run(lambda calls: access.create_acls(calls, wanted, timeout))

    def describe_acls(
        self, acl_filter: AclBindingFilter | None = None, timeout: float | None = None
    ) -> list[AclBinding]:
        """The access control entries that a filter selects; None selects all. Raises SecurityDisabledError if the
        cluster has no authorizer."""
        wanted = access.wanted_filter(acl_filter)
        return self._run(lambda calls: access.describe_acls(calls, wanted, timeout))

    def delete_acls(self, filters: Iterable[AclBindingFilter], timeout: float | None = None) -> list[AclBinding]:
        """Delete the access control entries that one of the filters selects; returns the deleted entries. Raises
        SecurityDisabledError if the cluster has no authorizer."""
        wanted = access.wanted_filters(filters)
        return self._run(lambda calls: access.delete_acls(calls, wanted, timeout))

    def describe_user_scram_credentials(
        self, users: Iterable[str] = (), *, timeout: float | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """Mechanisms and iterations of users' SCRAM credentials (KIP-554); without ``users``, of all users.

        Raises ResourceNotFoundError for a user without credentials, DuplicateResourceError for a user who is named
        twice.
        """
        wanted = arguments.texts("users", users)
        return self._run(lambda calls: scram_users.describe_user_scram_credentials(calls, wanted, timeout))

    def alter_user_scram_credentials(
        self,
        changes: Iterable[UserScramCredentialUpsertion | UserScramCredentialDeletion],
        *,
        timeout: float | None = None,
    ) -> None:
        """Set and remove SCRAM credentials of users (KIP-554). The client salts each password, and does not send the
        password itself.

        Raises UnacceptableCredentialError, ResourceNotFoundError for the removal of a credential that does not exist,
        and DuplicateResourceError.
        """
        wanted = scram_users.wanted_changes(changes)
        self._run(lambda calls: scram_users.alter_user_scram_credentials(calls, wanted, timeout))

    def create_delegation_token(
        self,
        renewers: Iterable[str] = (),
        *,
        owner: str | None = None,
        max_lifetime_ms: int | None = None,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Create a delegation token (KIP-48): a client with the token may act as ``owner`` (default: this user) until
        the token expires. For another owner, this user needs the right CREATE_TOKENS on that owner. ``renewers``:
        principals that may renew the token. ``max_lifetime_ms``: at most the cluster's
        delegation.token.max.lifetime.ms; None or -1: that maximum.

        Raises DelegationTokenAuthDisabledError for a cluster without tokens. Raises
        DelegationTokenRequestNotAllowedError for a client that is not authenticated, or that has authenticated with a
        token. Raises DelegationTokenAuthorizationFailedError and InvalidPrincipalTypeError.
        """
        wanted = tokens.wanted_principals("renewers", renewers)
        named = "" if owner is None else tokens.wanted_principals("owner", [owner])[0]
        lifetime_ms = tokens.wanted_period("max_lifetime_ms", max_lifetime_ms)
        return self._run(lambda calls: tokens.create(calls, wanted, named, lifetime_ms, timeout))

    def renew_delegation_token(self, hmac: bytes, *, period_ms: int | None = None, timeout: float | None = None) -> int:
        """Move a token's expiry to ``period_ms`` from now, at most delegation.token.expiry.time.ms; None, 0 or -1: that
        maximum. Only the owner and the renewers may renew the token. Returns the new expiry in milliseconds since 1970.

        Raises DelegationTokenNotFoundError, DelegationTokenExpiredError, DelegationTokenOwnerMismatchError and the
        errors of ``create_delegation_token``.
        """
        secret, wanted_ms = tokens.wanted_hmac(hmac), tokens.wanted_period("period_ms", period_ms)
        return self._run(lambda calls: tokens.renew(calls, secret, wanted_ms, timeout))

    def expire_delegation_token(
        self, hmac: bytes, *, period_ms: int | None = None, timeout: float | None = None
    ) -> int:
        """Let a token expire ``period_ms`` from now; None or -1: remove it at once. Only the owner and the renewers may
        let a token expire. Returns the expiry in milliseconds since 1970. Sessions that clients opened with the token
        end when the token expires, or within two seconds after the token is removed.

        Raises the errors of ``renew_delegation_token``.
        """
        secret, wanted_ms = tokens.wanted_hmac(hmac), tokens.wanted_period("period_ms", period_ms)
        return self._run(lambda calls: tokens.expire(calls, secret, wanted_ms, timeout))

    def describe_delegation_token(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """The tokens that this user owns, has requested, may renew or may describe; with ``owners``, only the tokens of
        these owners.

        Raises DelegationTokenAuthDisabledError and DelegationTokenRequestNotAllowedError.
        """
        wanted = tokens.wanted_owners(owners)
        return self._run(lambda calls: tokens.describe(calls, wanted, timeout))

    def describe_client_quotas(
        self,
        *,
        user: str | QuotaName | None = None,
        client_id: str | QuotaName | None = None,
        ip: str | QuotaName | None = None,
        strict: bool = False,
        timeout: float | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Quotas by entity (KIP-546). Each argument selects the entities with this user, client id or IP address.
        QuotaName.DEFAULT selects the default of all users, client ids or addresses; QuotaName.ANY selects every name
        and the default. ``strict``: select only entities that have no parts other than the given ones. Without
        arguments, the call returns all quotas."""
        wanted = quotas.wanted_filter(user, client_id, ip)
        return self._run(lambda calls: quotas.describe_client_quotas(calls, wanted, strict, timeout), strict=strict)

    def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set quotas, or remove them (None). Each broker applies the quota separately: with ``{"producer_byte_rate":
        5e6}`` a client may produce 5 MB/s on every broker. The keys are producer_byte_rate, consumer_byte_rate,
        request_percentage and controller_mutation_rate; for an IP address, the key is connection_creation_rate.

        Raises InvalidRequestError for an invalid entity, key or value.
        """
        wanted = quotas.wanted_changes(changes)
        self._run(
            lambda calls: quotas.alter_client_quotas(calls, wanted, validate_only, timeout),
            validate_only=validate_only,
        )

    def elect_leaders(
        self,
        election_type: ElectionType = "preferred",
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Elect leaders (KIP-460). "preferred" elects the first replica of each partition. "unclean" elects a replica
        that is not in sync if a partition has no leader; records that only other replicas have are lost.
        ``partitions=None`` elects a leader in every partition that needs an election.

        The result maps each partition to None (elected) or an error: ElectionNotNeededError,
        PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError, UnknownTopicOrPartitionError.
        """
        kind, wanted = replicas.wanted_election(election_type), replicas.wanted_partitions(partitions)
        return self._run(lambda calls: replicas.elect_leaders(calls, kind, wanted, timeout))

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        throttle_bytes_per_s: int | None = None,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Move each partition to the given brokers, preferred leader first; None cancels a partition's reassignment
        (KIP-455). ``alter_partition_reassignments`` returns when the controller has accepted the moves, which then run
        or are queued; ``list_partition_reassignments`` shows their progress.

        ``throttle_bytes_per_s``: how many bytes per second a broker may copy until all reassignments are done (0: no
        limit, None: unchanged). Raises InvalidReplicaAssignmentError, InvalidReplicationFactorError
        (``allow_replication_factor_change`` is False, KIP-860), NoReassignmentInProgressError,
        UnknownTopicOrPartitionError. The message of the raised error names every refused partition; the moves of all
        other partitions have been accepted.
        """
        wanted = replicas.wanted_reassignments(reassignments)
        throttle = replicas.wanted_throttle(throttle_bytes_per_s)
        self._run(
            lambda calls: replicas.alter_partition_reassignments(
                calls, wanted, throttle, allow_replication_factor_change, timeout
            ),
            allow_replication_factor_change=allow_replication_factor_change,
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments of ``partitions`` (None: all partitions) that are running or queued."""
        wanted = replicas.wanted_partitions(partitions)
        return self._run(lambda calls: replicas.list_partition_reassignments(calls, wanted, timeout))

    def drain_broker(self, broker_id: int, *, cancel: bool = False, timeout: float | None = None) -> int:
        """Drain a broker: move all its replicas to other brokers, a few at a time. The cluster places no new replicas
        on the broker until a call with ``cancel=True``. Returns how many replicas remain on the broker; call the method
        again to watch the progress. When no replicas remain, the broker can be stopped and unregistered.

        Raises BrokerIdNotRegisteredError, InvalidRequestError (no other broker can take some of the replicas).
        """
        broker = replicas.wanted_broker(broker_id)
        return self._run(lambda calls: replicas.drain_broker(calls, broker, cancel, timeout), cancel=cancel)

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Remove a broker's registration from the cluster. Raises BrokerIdNotRegisteredError, InvalidRequestError (the
        broker is alive, or has replicas: drain it first)."""
        broker = replicas.wanted_broker(broker_id)
        self._run(lambda calls: replicas.unregister_broker(calls, broker, timeout))

    def list_groups(
        self, states: Iterable[GroupState] | None = None, *, timeout: float | None = None
    ) -> list[GroupListing]:
        """The groups of the cluster, sorted, in one of ``states`` (None: in any state). Kafka's listGroups. The list of
        groups is always complete. While a partition of ``__consumer_offsets`` has no coordinator, the call waits, and
        in the end raises RequestTimedOutError."""
        wanted = groups.wanted_states(states)
        return self._run(lambda calls: groups.list_groups(calls, wanted, timeout))

    def describe_groups(
        self, group_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[GroupDescription]:
        """Describe groups: state, epochs, members and their assignments, in the order of ``group_ids`` (Kafka's
        describeConsumerGroups).

        Raises GroupIdNotFoundError, RequestTimedOutError (no coordinator answers); the error's message names every
        group that failed. With ``raise_errors=False`` the call does not raise the errors of single groups; the
        description of a failed group has an ``error``.
        """
        wanted = groups.wanted_groups(group_ids)
        return self._run(
            lambda calls: groups.describe_groups(calls, wanted, raise_errors, timeout), raise_errors=raise_errors
        )

    def describe_lag(
        self, group_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[GroupLag]:
        """The lag of each group, per partition with a committed offset, in records and in time, with a health verdict.
        Raises the same errors as ``describe_groups``. ``describe_lag`` is cheap, because the coordinator keeps the lag
        figures up to date all the time."""
        wanted = groups.wanted_groups(group_ids)
        return self._run(
            lambda calls: groups.describe_lag(calls, wanted, raise_errors, timeout), raise_errors=raise_errors
        )

    def explain_group(self, group_id: str, *, timeout: float | None = None) -> list[Rebalance]:
        """The last rebalances of a group (at most 20, oldest first): time, cause, partitions moved, and how long a
        partition had no reader. Raises GroupIdNotFoundError."""
        wanted = groups.wanted_group(group_id, may_be_empty=True)
        return self._run(lambda calls: groups.explain_group(calls, wanted, timeout))

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of a group (Kafka's listConsumerGroupOffsets), of all partitions or of ``partitions``;
        None for a partition without a committed offset. A group that does not exist has no offsets. ``require_stable``:
        wait until no transaction with offsets of the group is pending (KIP-447)."""
        group = groups.wanted_group(group_id, may_be_empty=True)
        wanted = groups.wanted_partitions(partitions)
        return self._run(
            lambda calls: groups.list_group_offsets(calls, group, wanted, require_stable, timeout),
            require_stable=require_stable,
        )

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets for a group that has no members (Kafka's alterConsumerGroupOffsets, KIP-396). The committed
        offsets of partitions that the call does not name stay unchanged. A commit for a group that does not exist
        creates the group. A commit does not check whether the log has records at the committed offsets.

        Raises UnknownMemberIdError (the group has members: stop them first), UnknownTopicOrPartitionError.
        """
        group, wanted = groups.wanted_group(group_id), groups.wanted_offsets(offsets)
        self._run(lambda calls: groups.alter_group_offsets(calls, group, wanted, timeout))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Delete a group's committed offsets of the given partitions (Kafka's deleteConsumerGroupOffsets, KIP-496).
        Raises GroupIdNotFoundError, GroupSubscribedToTopicError (members of the group read the topic); the offsets of
        all other partitions are deleted."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_partitions(partitions) or []
        self._run(lambda calls: groups.delete_group_offsets(calls, group, wanted, timeout))

    def remove_group_members(
        self, group_id: str, member_ids: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[str]:
        """Remove members (None: all members) from a group as if they had left (Kafka's removeMembersFromConsumerGroup,
        KIP-345). A removed consumer that is still running joins the group again. Returns the ids of the removed
        members. Raises UnknownMemberIdError."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_members(member_ids)
        return self._run(lambda calls: groups.remove_group_members(calls, group, wanted, timeout))

    def delete_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete groups without members, and their committed offsets (Kafka's deleteConsumerGroups). Raises
        NonEmptyGroupError, GroupIdNotFoundError; the error's message names every group that was not deleted."""
        wanted = groups.wanted_groups(group_ids)
        self._run(lambda calls: groups.delete_groups(calls, wanted, timeout))

    def list_transactions(
        self,
        states: Iterable[TransactionState] | None = None,
        *,
        producer_ids: Iterable[int] | None = None,
        open_for_ms: int | None = None,
        prefix: str = "",
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """List the transactional ids of the cluster, sorted (Kafka's listTransactions). An id is listed if it meets all
        conditions: the states, the producer ids, the ``prefix``, and a transaction that has been open for at least
        ``open_for_ms`` (KIP-994). The list of transactional ids is always complete. While a partition of
        ``__transaction_state`` has no coordinator, the call waits; after ``timeout`` the call raises
        RequestTimedOutError."""
        numbers, ids = transactions.wanted_states(states), transactions.wanted_producers(producer_ids)
        least_ms = None if open_for_ms is None else arguments.whole("open_for_ms", open_for_ms)
        arguments.text("prefix", prefix)
        return self._run(lambda calls: transactions.list_transactions(calls, numbers, ids, least_ms, prefix, timeout))

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[TransactionDescription]:
        """Describe transactional ids (Kafka's describeTransactions): state, producer, times and partitions of each, in
        the order of ``transactional_ids``.

        Raises TransactionalIdNotFoundError, RequestTimedOutError (no coordinator answers); the error's message names
        every id that failed. With ``raise_errors=False`` the call does not raise the errors of single ids; the
        description of a failed id has an ``error``.
        """
        wanted = transactions.wanted_ids(transactional_ids)
        return self._run(
            lambda calls: transactions.describe_transactions(calls, wanted, raise_errors, timeout),
            raise_errors=raise_errors,
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Describe the producers that the leader of each partition knows, with their open transactions (KIP-664,
        Kafka's describeProducers). Raises UnknownTopicOrPartitionError, RequestTimedOutError."""
        wanted = arguments.partitions(partitions)
        return self._run(lambda calls: transactions.describe_producers(calls, wanted, timeout))

    def abort_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Abort the open or prepared transaction of a transactional id, and raise its producer's epoch (Kafka's
        forceTerminateTransaction). The producer's next commit raises TransactionAbortableError; after the producer has
        called its own ``abort_transaction``, it continues with its new epoch.

        Raises TransactionalIdNotFoundError, InvalidTxnStateError (no transaction is open), RequestTimedOutError (the
        abort may have taken effect).
        """
        wanted = transactions.wanted_id(transactional_id)
        self._run(lambda calls: transactions.abort_transaction(calls, wanted, timeout))

    def abort_hanging_transaction(
        self, partition: TopicPartition, *, producer_id: int, start_offset: int, timeout: float | None = None
    ) -> None:
        """End a hanging transaction in one partition, with an abort marker (Kafka's abortTransaction). A hanging
        transaction is open in a partition, but its coordinator does not know the transaction. Readers with
        ``read_committed`` stop at the first offset of a hanging transaction until the transaction ends.
        ``describe_producers`` returns the ``producer_id`` and the ``start_offset`` of a hanging transaction. Use
        ``abort_transaction`` for a transaction that a coordinator knows.

        Raises InvalidTxnStateError (no transaction of the producer begins at ``start_offset``), InvalidTopicError (an
        internal topic).
        """
        where = arguments.partition(partition)
        producer, offset = arguments.whole("producer_id", producer_id), arguments.offset(start_offset, "start_offset")
        self._run(lambda calls: transactions.abort_hanging_transaction(calls, where, producer, offset, timeout))

    def complete_transaction(
        self, token: TransactionToken | str, *, commit: bool, timeout: float | None = None
    ) -> None:
        """Commit or abort a prepared transaction (KIP-939), and wait until readers see the result. The call may be
        repeated with the same outcome (commit or abort). Raises InvalidTxnStateError (the transaction is not prepared,
        or has ended with the other outcome), ProducerFencedError (the coordinator no longer knows the transaction's
        outcome)."""
        checked = checked_token(token)
        self._run(
            lambda calls: complete_transaction(
                calls.transaction_coordinators, checked, commit=commit, deadline=calls.engine.deadline(timeout)
            ),
            commit=commit,
        )

    def describe_sink(self, sink: str, *, timeout: float | None = None) -> SinkState:
        """Describe an exactly-once sink by its id (``__headrace_sink/QUERY/TARGET``). ``batch`` is -1 until the sink's
        first batch is committed."""
        arguments.text("sink", sink, empty=False)
        return self._run(
            lambda calls: describe_sink(calls.transaction_coordinators, sink, deadline=calls.engine.deadline(timeout))
        )

    def commit_sink_batch(
        self,
        sink: str,
        batch: int,
        tokens: Iterable[TransactionToken | str],
        *,
        generation: int | None = None,
        is_final: bool = False,
        timeout: float | None = None,
    ) -> SinkState:
        """Commit a batch of an exactly-once sink, and wait until readers see the result. The call commits the
        transactions of ``tokens``, and aborts the sink's other transactions up to this batch. The call may be repeated:
        if this batch or a later one is already committed, the call changes nothing and returns the sink's state.
        ``generation``: the generation that ``describe_sink`` returned to every task of the batch, including tasks
        without rows; None: only the generations of the tokens are checked. ``is_final``: no batch follows, so the
        coordinator may remove the sink's state. A batch has at most 10,000 tokens.

        Raises ProducerFencedError (the batch was aborted) and InvalidTxnStateError (a transaction is not prepared):
        write the batch again."""
        arguments.text("sink", sink, empty=False)
        arguments.whole("batch", batch)
        if generation is not None:
            arguments.whole("generation", generation)
        checked = checked_tokens(tokens, sink, batch)
        return self._run(
            lambda calls: commit_sink_batch(
                calls.transaction_coordinators,
                sink,
                batch,
                checked,
                generation=generation,
                is_final=is_final,
                deadline=calls.engine.deadline(timeout),
            ),
            is_final=is_final,
        )

    def abort_sink_batch(
        self, sink: str, batch: int, generation: int, *, is_final: bool = False, timeout: float | None = None
    ) -> SinkState:
        """Abort a batch of an exactly-once sink: the sink's open transactions are aborted, and transactions of
        ``generation`` can no longer be committed. If the batch is already committed, or the sink has a later
        generation, the call changes nothing. If the batch is already committed, ``batch`` of the result is at least the
        given ``batch``."""
        arguments.text("sink", sink, empty=False)
        arguments.whole("batch", batch)
        arguments.whole("generation", generation)
        return self._run(
            lambda calls: abort_sink_batch(
                calls.transaction_coordinators,
                sink,
                batch,
                generation,
                is_final=is_final,
                deadline=calls.engine.deadline(timeout),
            ),
            is_final=is_final,
        )

    def close(self) -> None:
        """Close the connections."""
        refuse_to_wait()
        if self._calls.begin_close():
            self._calls.engine.io.end(self._calls.engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, start: Callable[[AdminCalls], Coroutine[Any, Any, T]], **flags: bool) -> T:
        for name, given in flags.items():
            arguments.flag(name, given)
        self._calls.check_open()
        return self._calls.engine.io.run(start(self._calls))
