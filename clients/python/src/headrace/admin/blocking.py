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
    """Changes and describes a cluster.

        with Admin(bootstrap_servers="127.0.0.1:9095") as admin:
            admin.create_topics([NewTopic("orders", partitions=6)])

    Every change is visible to the same client's next call, whichever node answers it (read your writes). Time-outs are
    seconds; None means ``default.api.timeout.ms``. Errors: BootstrapError, RequestTimedOutError, and those of the
    cluster (TopicAlreadyExistsError, InvalidConfigError, ...).
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[AdminSettings]) -> None:
        self._calls = AdminCalls(resolve(ADMIN, config, settings))

    def _shown(self) -> list[str]:
        return [where(self._calls.engine.config), self._calls.state]

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, timeout: float | None = None, validate_only: bool = False
    ) -> list[CreatedTopic]:
        """Create topics; the first failure is raised, its message naming every topic that failed."""
        wanted = new_topics(topics)
        return self._run(lambda calls: calls.create_topics(wanted, timeout, validate_only), validate_only=validate_only)

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics and their records; UnknownTopicOrPartitionError when one does not exist."""
        wanted = arguments.texts("names", names)
        self._run(lambda calls: calls.delete_topics(wanted, timeout))

    def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[str]:
        """The names of all topics, sorted."""
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
        """Raise topics to new partition counts; a smaller count is InvalidPartitionsError."""
        wanted = new_counts(counts)
        self._run(lambda calls: calls.create_partitions(wanted, timeout, validate_only), validate_only=validate_only)

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_synonyms: bool = False, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """All keys of each resource, with where their values come from; with ``include_synonyms`` every value that is
        set for them. A live broker is asked itself what its properties file says."""
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
        """Set keys, put them back to their default (None), or change lists (AppendConfig, SubtractConfig); what is not
        named stays (KIP-339). ``validate_only``: check, and change nothing."""
        wanted = configs.wanted_changes(changes)
        self._run(
            lambda calls: configs.alter_configs(calls, wanted, timeout, validate_only), validate_only=validate_only
        )

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records below an offset (-1: all that are committed); returns the new first offsets."""
        wanted = records_before(before)
        return self._run(lambda calls: calls.delete_records(wanted, timeout))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Of each partition where the log starts ("earliest") or ends ("latest": one past the last committed record),
        the record with the largest timestamp ("max-timestamp"), or the first one at or after a time (ms since 1970).

        ``offset`` is -1 when there is no such record; ``timestamp_ms`` is that record's, -1 for a start or an end.
        ``isolation_level``: read_uncommitted or read_committed. Raises UnknownTopicOrPartitionError,
        InvalidArgumentError (a partition that the topic does not have), RequestTimedOutError.
        """
        times, isolation = offsets.wanted_offsets(wanted), offsets.wanted_isolation(isolation_level)
        return self._run(lambda calls: offsets.list_offsets(calls, times, isolation, timeout))

    def describe_cluster(
        self, *, include_fenced_brokers: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """Cluster id, active controller, brokers: the live ones, or with ``include_fenced_brokers`` all that are
        registered (KIP-1073)."""
        return self._run(
            lambda calls: calls.describe_cluster(include_fenced_brokers, timeout),
            include_fenced_brokers=include_fenced_brokers,
        )

    def describe_node(self, address: str, *, timeout: float | None = None) -> NodeDescription:
        """What the process at ``address`` ("host:port", of either listener) says of itself: role, version, how its
        clock stands to this machine's, how many of its descriptors are used. It answers while it does not serve, too.
        Nothing is retried: NetworkError, RequestTimedOutError, UnsupportedVersionError (it is too old to say)."""
        wanted = cluster.wanted_address(address)
        return self._run(lambda calls: cluster.describe_node(calls, wanted, timeout))

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        topics: Iterable[str | TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[int, list[LogDirDescription]]:
        """The log directories of brokers (None: of every live one), and the replicas of ``topics`` (None: all) in them.

        A directory that has failed is listed with its ``error``. BrokerIdNotRegisteredError when a broker is not live.
        """
        ids, wanted = log_dirs.wanted_brokers(brokers), log_dirs.wanted_replicas(topics)
        return self._run(lambda calls: log_dirs.describe_log_dirs(calls, ids, wanted, timeout))

    def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> None:
        """Move replicas to other directories of their brokers, each given by the path that log.dirs has for it.

        Returns when the moves have begun: ``describe_log_dirs`` shows each copy as ``is_future`` until it takes over.
        Raises LogDirNotFoundError, StorageError (a directory is offline), ReplicaNotAvailableError.
        """
        wanted = log_dirs.wanted_moves(moves)
        self._run(lambda calls: log_dirs.alter_replica_log_dirs(calls, wanted, timeout))

    def describe_quorum(self, *, timeout: float | None = None) -> QuorumInfo:
        """The controllers that vote and those that only follow, as their leader sees them (KIP-836)."""
        return self._run(lambda calls: cluster.describe_quorum(calls, timeout))

    def add_voter(
        self, node_id: int, directory_id: bytes | str | None = None, *, address: str = "", timeout: float | None = None
    ) -> None:
        """Make a controller that follows the metadata log a voter (KIP-853): waits until it has caught up, and until
        the change is committed. ``directory_id``: 16 bytes, or their 22 letters; None: that of the one controller with
        this id that follows. ``address``: "host:port" of its internal listener; "": what it says itself.

        Raises DuplicateVoterError, RequestTimedOutError (it did not catch up), InvalidArgumentError.
        """
        node, directory = cluster.wanted_node(node_id), cluster.wanted_directory(directory_id)
        arguments.text("address", address)
        self._run(lambda calls: cluster.add_voter(calls, node, directory, address, timeout))

    def remove_voter(
        self, node_id: int, directory_id: bytes | str | None = None, *, timeout: float | None = None
    ) -> None:
        """Take the vote from a controller (KIP-853); returns when that is committed. A leader may go, the last voter
        may not. Raises VoterNotFoundError, InvalidRequestError (the last one), RequestTimedOutError."""
        node, directory = cluster.wanted_node(node_id), cluster.wanted_directory(directory_id)
        self._run(lambda calls: cluster.remove_voter(calls, node, directory, timeout))

    def transfer_leadership(self, node_id: int | None = None, *, timeout: float | None = None) -> int:
        """Have another voter lead the controllers, without waiting for a time-out (None: the one that is furthest);
        returns the new leader's id. Raises VoterNotFoundError, RequestTimedOutError (who led before leads on)."""
        node = None if node_id is None else cluster.wanted_node(node_id)
        return self._run(lambda calls: cluster.transfer_leadership(calls, node, timeout))

    def describe_features(self, *, timeout: float | None = None) -> dict[str, FeatureInfo]:
        """Feature levels (KIP-584), by name: which the cluster is at, and which its controller understands."""
        return self._run(lambda calls: cluster.describe_features(calls, timeout))

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raise features to these levels, or lower them (``downgrade``: only if nothing is lost). ``metadata.version``
        is the only one. Raise it once all nodes run a version that understands it.

        Raises InvalidUpdateVersionError, which says what stands in the way.
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
        """Have partitions (None: all that need it) led by their first replica again, or, with "unclean", those that
        nobody leads by a replica that is not in sync: the records that only others have are lost (KIP-460).

        Returns what became of each: None, or ElectionNotNeededError, PreferredLeaderNotAvailableError,
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
        """Move partitions to these brokers, preferred leader first; None cancels what is under way (KIP-455). Returns
        when the moves have begun, or wait for their turn; ``list_partition_reassignments`` shows how far they are.

        ``throttle_bytes_per_s``: what copying may cost each broker until all reassignments are done (0: no throttle,
        None: as it is). Raises InvalidReplicaAssignmentError, InvalidReplicationFactorError (when the factor may not
        change, KIP-860), NoReassignmentInProgressError, UnknownTopicOrPartitionError; the message names every partition
        that was refused, the others are on their way.
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
        """Those of ``partitions`` (None: of all) that are on their way to other brokers, or wait for their turn."""
        wanted = replicas.wanted_partitions(partitions)
        return self._run(lambda calls: replicas.list_partition_reassignments(calls, wanted, timeout))

    def drain_broker(self, broker_id: int, *, cancel: bool = False, timeout: float | None = None) -> int:
        """Have all replicas of a broker moved to others, a few at a time; it gets no new ones until ``cancel``. Returns
        how many it has still: ask again to see them go. Then it can be stopped and unregistered.

        Raises BrokerIdNotRegisteredError, InvalidRequestError (nobody else could take them).
        """
        broker = replicas.wanted_broker(broker_id)
        return self._run(lambda calls: replicas.drain_broker(calls, broker, cancel, timeout), cancel=cancel)

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Forget a broker that will not come back. Raises BrokerIdNotRegisteredError, InvalidRequestError (it is alive,
        or has replicas: drain it first)."""
        broker = replicas.wanted_broker(broker_id)
        self._run(lambda calls: replicas.unregister_broker(calls, broker, timeout))

    def list_groups(
        self, states: Iterable[GroupState] | None = None, *, timeout: float | None = None
    ) -> list[GroupListing]:
        """The groups of the cluster, sorted; ``states``: only those in one of these (None: in any). Kafka's listGroups.
        As long as a part of them has no coordinator it waits; then RequestTimedOutError, never half a list."""
        wanted = groups.wanted_states(states)
        return self._run(lambda calls: groups.list_groups(calls, wanted, timeout))

    def describe_groups(
        self, group_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[GroupDescription]:
        """State, epochs, members and what they read, in the order of ``group_ids`` (describeConsumerGroups).

        Raises GroupIdNotFoundError, RequestTimedOutError (no coordinator answers); the message names every group that
        failed. ``raise_errors`` False: such a group is described by its ``error``.
        """
        wanted = groups.wanted_groups(group_ids)
        return self._run(
            lambda calls: groups.describe_groups(calls, wanted, raise_errors, timeout), raise_errors=raise_errors
        )

    def describe_lag(
        self, group_ids: Iterable[str], *, raise_errors: bool = True, timeout: float | None = None
    ) -> list[GroupLag]:
        """How far groups are behind in the partitions that they have committed offsets of, in records and in time, and
        whether they are well; errors as of ``describe_groups``. Kept by the coordinator, so asking costs little."""
        wanted = groups.wanted_groups(group_ids)
        return self._run(
            lambda calls: groups.describe_lag(calls, wanted, raise_errors, timeout), raise_errors=raise_errors
        )

    def explain_group(self, group_id: str, *, timeout: float | None = None) -> list[Rebalance]:
        """The last rebalances of a group, the oldest first, 20 at most: when, why, what moved, how long it went unread.
        Raises GroupIdNotFoundError."""
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
        """What a group has committed (listConsumerGroupOffsets): of all partitions, or of ``partitions``, None where
        there is nothing. A group that does not exist has committed nothing. ``require_stable``: wait for transactions
        that are about to commit (KIP-447)."""
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
        """Commit offsets for a group that has no members (alterConsumerGroupOffsets, KIP-396); what is not named stays,
        and a group that does not exist comes to be. Whether there are records there is not asked.

        Raises UnknownMemberIdError (it has members: stop them first), UnknownTopicOrPartitionError.
        """
        group, wanted = groups.wanted_group(group_id), groups.wanted_offsets(offsets)
        self._run(lambda calls: groups.alter_group_offsets(calls, group, wanted, timeout))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Forget what a group has committed of partitions (deleteConsumerGroupOffsets, KIP-496). Raises
        GroupIdNotFoundError, GroupSubscribedToTopicError (members read the topic); the others are deleted."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_partitions(partitions) or []
        self._run(lambda calls: groups.delete_group_offsets(calls, group, wanted, timeout))

    def remove_group_members(
        self, group_id: str, member_ids: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[str]:
        """Take members (None: all) out of a group, as if they had left (removeMembersFromConsumerGroup, KIP-345);
        consumers that live join again. Returns the ids of those that are out. Raises UnknownMemberIdError."""
        group, wanted = groups.wanted_group(group_id), groups.wanted_members(member_ids)
        return self._run(lambda calls: groups.remove_group_members(calls, group, wanted, timeout))

    def delete_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete groups that have no members, with their offsets (deleteConsumerGroups). Raises NonEmptyGroupError,
        GroupIdNotFoundError; the message names every group that stays, the others are deleted."""
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
