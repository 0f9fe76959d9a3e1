"""Admin: AsyncAdmin without async. Generated from aio.py by tools/blocking_admin.py generate: change aio.py."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from .. import arguments
from ..callbacks import refuse_to_wait
from ..faces import Face, where
from ..group_models import GroupDescription, GroupLag, GroupListing, GroupState, Rebalance
from ..models import (
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
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetSpec,
    PartitionReassignment,
    QuorumInfo,
    TopicDescription,
    TopicPartitionReplica,
)
from ..settings import ADMIN, resolve
from ..typed_settings import AdminSettings
from . import cluster, configs, groups, log_dirs, offsets, replicas
from .calls import AdminCalls, new_counts, new_topics, records_before

T = TypeVar("T")


class Admin(Face):
    """Asyncio client that describes and changes a cluster.

        with Admin(bootstrap_servers="127.0.0.1:9095") as admin:
            admin.create_topics([NewTopic("orders", partitions=6)])

    The client sees its own changes in its next call, whichever node answers (read your writes). Timeouts are in
    seconds; None means ``default.api.timeout.ms``. Every call may raise BootstrapError, RequestTimedOutError,
    InvalidArgumentError and errors of the cluster (TopicAlreadyExistsError, InvalidConfigError, ...).
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[AdminSettings]) -> None:
        self._calls = AdminCalls(resolve(ADMIN, config, settings))

    def _shown(self) -> list[str]:
        return [where(self._calls.engine.config), self._calls.state]

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, timeout: float | None = None, validate_only: bool = False
    ) -> list[CreatedTopic]:
        """Create topics. Raises the first failure; its message names every topic that failed."""
        wanted = new_topics(topics)
        return self._run(lambda calls: calls.create_topics(wanted, timeout, validate_only), validate_only=validate_only)

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics and their records. Raises UnknownTopicOrPartitionError if one does not exist."""
        wanted = arguments.texts("names", names)
        self._run(lambda calls: calls.delete_topics(wanted, timeout))

    def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[str]:
        """The names of all topics, sorted. ``include_internal`` adds internal topics such as ``__consumer_offsets``."""
        return self._run(lambda calls: calls.list_topics(include_internal, timeout), include_internal=include_internal)

    def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """Partitions, leaders and replicas, in the order of ``names`` (None: all topics, sorted)."""
        wanted = None if names is None else arguments.texts("names", names)
        return self._run(lambda calls: calls.describe_topics(wanted, timeout))

    def create_partitions(
        self, counts: Mapping[str, int], *, timeout: float | None = None, validate_only: bool = False
    ) -> None:
        """Increase partition counts (topic -> new count). Raises InvalidPartitionsError unless a count is larger."""
        wanted = new_counts(counts)
        self._run(lambda calls: calls.create_partitions(wanted, timeout, validate_only), validate_only=validate_only)

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_synonyms: bool = False, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """All keys of each resource with value and source. ``include_synonyms`` adds every value that is set for a key,
        in order of precedence (KIP-226). A live broker answers for its own properties file."""
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
        """Set keys, reset them to their default (None), or edit lists (AppendConfig, SubtractConfig). Other keys keep
        their values (KIP-339). ``validate_only``: check without a change."""
        wanted = configs.wanted_changes(changes)
        self._run(
            lambda calls: configs.alter_configs(calls, wanted, timeout, validate_only), validate_only=validate_only
        )

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete records below an offset (-1: all committed records); returns the new log start offsets."""
        wanted = records_before(before)
        return self._run(lambda calls: calls.delete_records(wanted, timeout))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Look up one offset per partition: log start ("earliest"), log end ("latest": one past the last committed
        record), the record with the largest timestamp ("max-timestamp", KIP-734), or the first record at or after a
        time (ms since 1970).

        ``offset`` is -1 when there is no such record; ``timestamp_ms`` is the record's, -1 for "earliest" and "latest".
        ``isolation_level``: read_uncommitted or read_committed. Raises UnknownTopicOrPartitionError,
        InvalidArgumentError (no such partition), RequestTimedOutError.
        """
        times, isolation = offsets.wanted_offsets(wanted), offsets.wanted_isolation(isolation_level)
        return self._run(lambda calls: offsets.list_offsets(calls, times, isolation, timeout))

    def describe_cluster(
        self, *, include_fenced_brokers: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """Cluster id, active controller, live brokers; ``include_fenced_brokers`` adds registered others (KIP-1073)."""
        return self._run(
            lambda calls: calls.describe_cluster(include_fenced_brokers, timeout),
            include_fenced_brokers=include_fenced_brokers,
        )

    def describe_node(self, address: str, *, timeout: float | None = None) -> NodeDescription:
        """What the process at ``address`` ("host:port" of either listener) reports: role, version, clock offset to this
        machine, use of file descriptors. A node also answers while it is not serving. The call is not retried. Raises
        NetworkError, RequestTimedOutError, UnsupportedVersionError (the node's version lacks the call)."""
        wanted = cluster.wanted_address(address)
        return self._run(lambda calls: cluster.describe_node(calls, wanted, timeout))

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        topics: Iterable[str | TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[int, list[LogDirDescription]]:
        """The log directories of brokers (None: every live one), and the replicas of ``topics`` (None: all) in them.

        A failed directory has an ``error``. Raises BrokerIdNotRegisteredError if a broker is not live.
        """
        ids, wanted = log_dirs.wanted_brokers(brokers), log_dirs.wanted_replicas(topics)
        return self._run(lambda calls: log_dirs.describe_log_dirs(calls, ids, wanted, timeout))

    def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> None:
        """Move replicas to another directory of their broker (KIP-113). Paths are those of the broker's ``log.dirs``.

        Returns when the moves have begun: ``describe_log_dirs`` shows a copy as ``is_future`` until it replaces the old
        one. Raises LogDirNotFoundError, StorageError (a directory is offline), ReplicaNotAvailableError.
        """
        wanted = log_dirs.wanted_moves(moves)
        self._run(lambda calls: log_dirs.alter_replica_log_dirs(calls, wanted, timeout))

    def describe_quorum(self, *, timeout: float | None = None) -> QuorumInfo:
        """The voters and observers of the controller quorum, as its leader sees them (KIP-836)."""
        return self._run(lambda calls: cluster.describe_quorum(calls, timeout))

    def add_voter(
        self, node_id: int, directory_id: bytes | str | None = None, *, address: str = "", timeout: float | None = None
    ) -> None:
        """Make an observer controller a voter (KIP-853). Returns when it has caught up and the change is committed.

        ``directory_id``: 16 bytes or their 22-letter text; None: that of the only observer with this id. ``address``:
        "host:port" of its internal listener; "": the address that it reports. Raises DuplicateVoterError,
        RequestTimedOutError (it did not catch up), InvalidArgumentError.
        """
        node, directory = cluster.wanted_node(node_id), cluster.wanted_directory(directory_id)
        arguments.text("address", address)
        self._run(lambda calls: cluster.add_voter(calls, node, directory, address, timeout))

    def remove_voter(
        self, node_id: int, directory_id: bytes | str | None = None, *, timeout: float | None = None
    ) -> None:
        """Remove a voter from the controller quorum (KIP-853); returns when the change is committed. The leader may be
        removed, the last voter may not. Raises VoterNotFoundError, InvalidRequestError (last voter),
        RequestTimedOutError."""
        node, directory = cluster.wanted_node(node_id), cluster.wanted_directory(directory_id)
        self._run(lambda calls: cluster.remove_voter(calls, node, directory, timeout))

    def transfer_leadership(self, node_id: int | None = None, *, timeout: float | None = None) -> int:
        """Make another voter the leader of the quorum without an election timeout (None: the most up-to-date one);
        returns the new leader's id. Raises VoterNotFoundError, RequestTimedOutError (the old leader continues)."""
        node = None if node_id is None else cluster.wanted_node(node_id)
        return self._run(lambda calls: cluster.transfer_leadership(calls, node, timeout))

    def describe_features(self, *, timeout: float | None = None) -> dict[str, FeatureInfo]:
        """Feature levels by name (KIP-584): the cluster's level, and the range that its controller supports."""
        return self._run(lambda calls: cluster.describe_features(calls, timeout))

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raise features to these levels; with ``downgrade`` also lower them, if that loses no metadata. The only
        feature is ``metadata.version``. Raise its level when all nodes run a Headrace version that supports the new
        level.

        Raises InvalidUpdateVersionError; its message names the obstacle.
        """
        wanted = cluster.wanted_levels(levels)
        self._run(
            lambda calls: cluster.update_features(calls, wanted, downgrade, validate_only, timeout),
            downgrade=downgrade,
            validate_only=validate_only,
        )

    def elect_leaders(
        self,
        election_type: ElectionType = "preferred",
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Elect leaders (KIP-460): "preferred" makes the first replica lead again; "unclean" lets a replica that is not
        in sync lead a partition without leader, which loses the records that only other replicas have. ``partitions``
        None: all that need it.

        Returns for each None or an error: ElectionNotNeededError, PreferredLeaderNotAvailableError,
        EligibleLeadersNotAvailableError, UnknownTopicOrPartitionError.
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
        """Move partitions to these brokers, preferred leader first; None cancels a reassignment (KIP-455). Returns when
        the moves are accepted, running or queued; ``list_partition_reassignments`` shows their progress.

        ``throttle_bytes_per_s``: limit per broker for copying until all reassignments are done (0: no limit, None:
        unchanged). Raises InvalidReplicaAssignmentError, InvalidReplicationFactorError (the factor may not change,
        KIP-860), NoReassignmentInProgressError, UnknownTopicOrPartitionError. The message names every refused
        partition; the other reassignments have been accepted.
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
        """The reassignments of ``partitions`` (None: all) that are running or queued."""
        wanted = replicas.wanted_partitions(partitions)
        return self._run(lambda calls: replicas.list_partition_reassignments(calls, wanted, timeout))

    def drain_broker(self, broker_id: int, *, cancel: bool = False, timeout: float | None = None) -> int:
        """Move all replicas of a broker to other brokers, a few at a time, and place no new ones on it until
        ``cancel``. Returns how many replicas remain; call it again to watch. At 0 the broker can be stopped and
        unregistered.

        Raises BrokerIdNotRegisteredError, InvalidRequestError (no other broker can take the replicas).
        """
        broker = replicas.wanted_broker(broker_id)
        return self._run(lambda calls: replicas.drain_broker(calls, broker, cancel, timeout), cancel=cancel)

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Remove a broker's registration. Raises BrokerIdNotRegisteredError, InvalidRequestError (it is alive, or has
        replicas: drain it first)."""
        broker = replicas.wanted_broker(broker_id)
        self._run(lambda calls: replicas.unregister_broker(calls, broker, timeout))

    def list_groups(
        self, states: Iterable[GroupState] | None = None, *, timeout: float | None = None
    ) -> list[GroupListing]:
        """The groups of the cluster, sorted, with one of ``states`` (None: all). Kafka's listGroups. The list is
        complete or the call fails: it waits for shards without coordinator until RequestTimedOutError."""
        wanted = groups.wanted_states(states)
        return self._run(lambda calls: groups.list_groups(calls, wanted, timeout))

    def describe_groups(
        self, group_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[GroupDescription]:
        """State, epochs, members and their assignments, in the order of ``group_ids`` (describeConsumerGroups).

        Raises GroupIdNotFoundError, RequestTimedOutError (no coordinator answers); the message names every group that
        failed. With ``raise_errors=False`` a failed group has an ``error`` instead.
        """
        wanted = groups.wanted_groups(group_ids)
        return self._run(
            lambda calls: groups.describe_groups(calls, wanted, raise_errors, timeout), raise_errors=raise_errors
        )

    def describe_lag(
        self, group_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[GroupLag]:
        """The lag of groups per partition with a committed offset, in records and in time, and a health verdict. Errors
        as in ``describe_groups``. The coordinator maintains these figures, so the call is cheap."""
        wanted = groups.wanted_groups(group_ids)
        return self._run(
            lambda calls: groups.describe_lag(calls, wanted, raise_errors, timeout), raise_errors=raise_errors
        )

    def explain_group(self, group_id: str, *, timeout: float | None = None) -> list[Rebalance]:
        """The last rebalances of a group (at most 20, oldest first): time, cause, partitions moved, time without a
        reader. Raises GroupIdNotFoundError."""
        wanted = groups.wanted_group(group_id)
        return self._run(lambda calls: groups.explain_group(calls, wanted, timeout))

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets of a group (listConsumerGroupOffsets): of all partitions, or of ``partitions``, with None
        where there is no offset. A group that does not exist has no offsets. ``require_stable``: wait for pending
        transactions (KIP-447)."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_partitions(partitions)
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
        """Commit offsets for a group without members (alterConsumerGroupOffsets, KIP-396). Other partitions keep
        theirs. A group that does not exist is created. Whether the log has these offsets is not checked.

        Raises UnknownMemberIdError (the group has members: stop them first), UnknownTopicOrPartitionError.
        """
        group, wanted = groups.wanted_group(group_id), groups.wanted_offsets(offsets)
        self._run(lambda calls: groups.alter_group_offsets(calls, group, wanted, timeout))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Delete a group's committed offsets of partitions (deleteConsumerGroupOffsets, KIP-496). Raises
        GroupIdNotFoundError, GroupSubscribedToTopicError (members read the topic); the other offsets are deleted."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_partitions(partitions) or []
        self._run(lambda calls: groups.delete_group_offsets(calls, group, wanted, timeout))

    def remove_group_members(
        self, group_id: str, member_ids: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[str]:
        """Remove members (None: all) from a group as if they had left (removeMembersFromConsumerGroup, KIP-345).
        Running consumers join again. Returns the ids of removed members. Raises UnknownMemberIdError."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_members(member_ids)
        return self._run(lambda calls: groups.remove_group_members(calls, group, wanted, timeout))

    def delete_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete groups without members, with their offsets (deleteConsumerGroups). Raises NonEmptyGroupError,
        GroupIdNotFoundError; the message names every group that remains, the others are deleted."""
        wanted = groups.wanted_groups(group_ids)
        self._run(lambda calls: groups.delete_groups(calls, wanted, timeout))

    def close(self) -> None:
        """Close the connections."""
        refuse_to_wait()
        if self._calls.begin_close():
            self._calls.engine.io.run(self._calls.engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, start: Callable[[AdminCalls], Coroutine[Any, Any, T]], **flags: bool) -> T:
        for name, given in flags.items():
            arguments.flag(name, given)
        self._calls.check_open()
        return self._calls.engine.io.run(start(self._calls))
