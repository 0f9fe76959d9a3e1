"""Collect the state of a cluster for ``headrace doctor``: through Admin, through sockets to each address, and for nodes
of this machine through cluster.json.

A failed request is noted in ``not_asked``, and the other requests continue: the doctor must work on a broken cluster.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.cluster_models import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    LogDirDescription,
    NodeDescription,
    PartitionReassignment,
    QuorumInfo,
    TopicDescription,
)
from headrace.group_models import GroupLag
from headrace.transaction_models import UNFINISHED_STATES
from headrace_core.config.topic_keys import KEEPS_EVERYTHING
from headrace_core.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace_core.file_modes import is_open_to_others
from headrace_core.security.tls import TlsSource
from headrace_core.types import TopicPartition

from ..asking import ask_each
from ..group_ends import at_ends, log_ends
from ..hanging import HangingTransaction, hanging_transactions, may_have_hanging
from ..local.directory import ClusterDirectory
from ..orphaned_offsets import OrphanedOffset, orphaned_offsets
from .facts import (
    THE_QUORUM,
    Facts,
    GroupFacts,
    LocalNode,
    Move,
    NotAsked,
    Refusal,
    TransactionFacts,
    Tried,
    Trouble,
)
from .logins import Logins
from .probing import try_addresses

if TYPE_CHECKING:
    from headrace.admin import Admin

K = TypeVar("K")
T = TypeVar("T")

#: Number of topics per describe_configs request.
_TOPICS_AT_ONCE = 500
#: Timeout for the lookup of log end offsets (seconds).
_ENDS_S = 5.0
#: Maximum number of groups whose rebalances the doctor reads; the doctor checks all other groups by state and lag only.
_GROUPS_EXPLAINED_MAX = 500
#: Maximum number of transactions that the doctor describes; the doctor describes the oldest transactions.
_TRANSACTIONS_MAX = 1_000


class Gathering:
    """Collects the state of a cluster for one run of the doctor's rules. ``timeout_s``: timeout of a request to a node.
    ``look_s``: time between two samples that show the progress of reassignments; without reassignments there is no
    second sample. ``tls``: the client's keys and certificates; None: the client does not encrypt. ``logins``: explains
    refused logins; None: they are not explained."""

    def __init__(
        self,
        client: Admin,
        *,
        timeout_s: float = 5.0,
        look_s: float = 3.0,
        tls: TlsSource | None = None,
        logins: Logins | None = None,
    ) -> None:
        self._client = client
        self._tls, self._logins = tls, logins
        self._timeout_s = timeout_s
        self._look_s = look_s
        self._not_asked: list[NotAsked] = []

    def facts(self, bootstrap: Iterable[str], local: ClusterDirectory | None = None) -> Facts:
        """All facts. ``facts`` takes some round trips, or seconds when nodes are silent or partitions move."""
        client, timeout_s = self._client, self._timeout_s
        facts = Facts(
            now_ms=0,
            bootstrap=tuple(self._tried(bootstrap)),
            data="" if local is None else str(local.directory),
            local=() if local is None else local_nodes(local),
            is_data_open=local is not None and is_open_to_others(local.directory),
        )
        cluster = self._ask(
            "the cluster", lambda: client.describe_cluster(include_fenced_brokers=True, timeout=timeout_s)
        )
        if cluster is None:
            return dataclasses.replace(
                facts,
                bootstrap=tuple(self._logged_in(dict(enumerate(facts.bootstrap))).values()),
                now_ms=time.time() * 1_000,
                not_asked=tuple(self._not_asked),
            )
        brokers = self._nodes("broker", {each.broker_id: each.address for each in cluster.brokers if not each.fenced})
        fenced = {each.broker_id: each.address for each in cluster.brokers if each.fenced}
        coordinators = self._nodes("coordinator", {each.coordinator_id: each.address for each in cluster.coordinators})
        controllers = self._nodes(
            "controller", {each.controller_id: f"{each.host}:{each.port}" for each in cluster.controllers}
        )
        reached = [number for number, tried in brokers.items() if tried.node is not None or tried.trouble is None]
        for number in sorted(set(brokers) - set(reached)):
            self._not_asked.append(NotAsked(what=f"the disks of broker {number}", why=brokers[number].detail))
        topics = tuple(self._ask("topics", lambda: client.describe_topics(timeout=timeout_s)) or ())
        configs = self._configs([topic.name for topic in topics])
        groups = self._groups(cluster, coordinators)
        log_dirs = self._log_dirs(reached)
        return dataclasses.replace(
            facts,
            cluster=cluster,
            brokers=brokers,
            fenced_brokers=dict(zip(fenced, self._tried(fenced.values()), strict=True)),
            coordinators=coordinators,
            controllers=controllers,
            features=self._ask("feature levels", lambda: client.describe_features(timeout=timeout_s)) or {},
            quorum=self._quorum(),
            topics=topics,
            min_insync={name: int(values["min.insync.replicas"].value) for name, values in configs.items()},
            unlimited=frozenset(name for name, values in configs.items() if _keeps_everything(values)),
            log_dirs=log_dirs,
            moves=self._moves(reached, log_dirs),
            groups=groups,
            transactions=self._transactions(coordinators),
            hanging=self._hanging(topics),
            orphaned=self._orphaned(groups),
            now_ms=time.time() * 1_000,
            not_asked=tuple(self._not_asked),
        )

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except HeadraceError as error:
            self._missed(what, error)
            return None

    def _ask_each(self, items: Iterable[K], what: Callable[[K], str], question: Callable[[K], T]) -> dict[K, T]:
        """Send all requests at once, because each silent node costs its timeout; return the answers that came."""
        found = {}
        for item, answer in ask_each(items, question).items():
            if answer.error is not None:
                self._missed(what(item), answer.error)
            elif answer.value is not None:
                found[item] = answer.value
        return found

    def _missed(self, what: str, error: HeadraceError) -> None:
        is_forbidden = error.code.endswith("_AUTHORIZATION_FAILED")
        why = f"{error.message} [{error.code}]"
        self._not_asked.append(NotAsked(what=what, why=why, is_no_fault=is_forbidden))

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _tried(self, addresses: Iterable[str]) -> list[Tried]:
        return try_addresses(addresses, timeout_s=min(self._timeout_s, 5.0), tls=self._tls)

    def _nodes(self, role: str, addresses: Mapping[int, str]) -> dict[int, Tried]:
        found = dict(zip(addresses, self._tried(addresses.values()), strict=True))
        answering = [node_id for node_id, tried in found.items() if tried.trouble in (None, Trouble.NOT_SERVING)]
        if role == "controller" and self._tls is not None:
            answering = []  # on a secured cluster the listener accepts only calls of nodes, apart from health checks
        answers, errors = self._descriptions({node_id: found[node_id].address for node_id in answering})
        if role != "controller":
            found |= self._logged_in({node_id: found[node_id] for node_id in errors})
        for node_id, error in errors.items():
            if found[node_id].node is None:
                self._missed(f"{role} {node_id} about itself", error)
        for node_id, tried in found.items():
            if node_id in answers:
                found[node_id] = dataclasses.replace(tried, node=answers[node_id])
            elif node_id not in answering and role == "controller":
                # A controller's listener is not for clients, so a missing answer is not a fault, but the controller's
                # state is then unknown.
                what = f"{role} {node_id} about itself"
                self._not_asked.append(
                    NotAsked(
                        what=what, why=tried.detail or "its listener accepts only calls of nodes", is_no_fault=True
                    )
                )
        return found

    def _descriptions(
        self, addresses: Mapping[int, str]
    ) -> tuple[dict[int, NodeDescription], dict[int, HeadraceError]]:
        """The nodes' descriptions of themselves, and the errors of the nodes that did not answer."""
        found, errors = {}, {}
        answers = ask_each(addresses, lambda each: self._client.describe_node(addresses[each], timeout=self._timeout_s))
        for node_id, answer in answers.items():
            if answer.error is not None:
                errors[node_id] = answer.error
            elif answer.value is not None:
                found[node_id] = answer.value
        return found, errors

    def _logged_in(self, tried: Mapping[int, Tried]) -> dict[int, Tried]:
        """Log in at each address that answers the health check, and note the reasons of failures."""
        logins, timeout_s = self._logins, self._timeout_s
        if logins is None:
            return dict(tried)
        asked = [number for number, each in tried.items() if each.trouble in (None, Trouble.NOT_SERVING)]
        answers = ask_each(asked, lambda number: logins.try_at(tried[number].address, timeout_s))
        return {
            number: _with_login(each, answers[number].value if number in answers else None)
            for number, each in tried.items()
        }

    def _quorum(self) -> QuorumInfo | None:
        """Describe the quorum; try again after a while if the leader was just elected and has not received a fetch from
        all voters."""
        first = self._ask(THE_QUORUM, lambda: self._client.describe_quorum(timeout=self._timeout_s))
        if first is None or all(voter.last_fetch_timestamp_ms is not None for voter in first.voters):
            return first
        time.sleep(self._look_s)
        return self._ask(THE_QUORUM, lambda: self._client.describe_quorum(timeout=self._timeout_s))

    # -- partitions --------------------------------------------------------------------------------------------------

    def _configs(self, names: list[str]) -> dict[str, dict[str, ConfigEntry]]:
        found: dict[str, dict[str, ConfigEntry]] = {}
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            found |= self._configs_of(names[start : start + _TOPICS_AT_ONCE])
        return found

    def _configs_of(self, names: list[str]) -> dict[str, dict[str, ConfigEntry]]:
        """Configurations of topics. The request for all topics fails as a whole if one topic was deleted after the
        listing. After the request for all topics failed, the two halves of the list are requested separately, and a
        single missing topic is ignored."""
        try:
            entries = self._client.describe_configs(
                [ConfigResource("topic", name) for name in names], timeout=self._timeout_s
            )
        except UnknownTopicOrPartitionError:
            if len(names) == 1:
                return {}
            half = len(names) // 2
            return self._configs_of(names[:half]) | self._configs_of(names[half:])
        except HeadraceError as error:
            self._missed("configurations of topics", error)
            return {}
        return {resource.name: values for resource, values in entries.items()}

    def _log_dirs(self, brokers: Iterable[int]) -> dict[int, tuple[LogDirDescription, ...]]:
        """The log directories of brokers, with one request per broker, so that a silent broker hides only its own
        directories."""
        found = self._ask_each(
            brokers,
            lambda broker_id: f"log directories of broker {broker_id}",
            lambda broker_id: self._client.describe_log_dirs([broker_id], timeout=self._timeout_s)[broker_id],
        )
        return {broker_id: tuple(answers) for broker_id, answers in found.items()}

    def _moves(self, brokers: Iterable[int], before: Mapping[int, tuple[LogDirDescription, ...]]) -> tuple[Move, ...]:
        def moving() -> dict[TopicPartition, PartitionReassignment] | None:
            return self._ask(
                "reassignments", lambda: self._client.list_partition_reassignments(timeout=self._timeout_s)
            )

        first = moving()
        if not first:
            return ()
        begun = time.monotonic()
        if any(not each.waits for each in first.values()):
            time.sleep(self._look_s)
            second = moving() or {}
            after: Mapping[int, tuple[LogDirDescription, ...]] = self._log_dirs(brokers)
        else:
            second, after = first, before
        apart_s = time.monotonic() - begun
        return tuple(
            Move(
                topic=partition.topic,
                partition=partition.partition,
                adding=now.adding_replicas,
                removing=now.removing_replicas,
                waits=now.waits,
                copied_bytes=_grown(partition, now.adding_replicas, before, after),
                apart_s=apart_s,
            )
            for partition, now in second.items()
            if partition in first and set(now.adding_replicas) == set(first[partition].adding_replicas)
        )

    # -- groups ------------------------------------------------------------------------------------------------------

    def _groups(self, cluster: ClusterDescription, coordinators: Mapping[int, Tried]) -> tuple[GroupFacts, ...]:
        client, timeout_s = self._client, self._timeout_s
        listed = self._ask("groups", lambda: client.list_groups(timeout=timeout_s))
        if not listed:
            return ()
        names = [each.group_id for each in listed]
        described = self._ask(
            "members of groups", lambda: client.describe_groups(names, raise_errors=False, timeout=timeout_s)
        )
        lags = self._ask("lag of groups", lambda: client.describe_lag(names, raise_errors=False, timeout=timeout_s))
        lag_of = self._at_ends(
            [each for each in lags or () if each.error is None],
            {each.group_id for each in described or () if each.state == "empty"},
        )
        if len(names) > _GROUPS_EXPLAINED_MAX:
            why = f"only the first {_GROUPS_EXPLAINED_MAX} of {len(names)} groups were checked"
            self._not_asked.append(NotAsked(what="rebalances of all groups", why=why, is_no_fault=True))
        explained = [each.group_id for each in (described or ())[:_GROUPS_EXPLAINED_MAX] if each.error is None]
        answers = self._ask_each(
            explained,
            lambda group_id: f"rebalances of group {group_id!r}",
            lambda group_id: client.explain_group(group_id, timeout=timeout_s),
        )
        return tuple(
            GroupFacts(
                described=each,
                lag=lag_of.get(each.group_id),
                rebalances=tuple(answers.get(each.group_id, ())),
                clock_ahead_ms=_clock_ahead_ms(coordinators, each.coordinator_id),
            )
            for each in described or ()
        )

    def _at_ends(self, lags: list[GroupLag], empty: set[str]) -> dict[str, GroupLag]:
        """The lag of groups, computed from the current log ends as in ``groups describe``."""
        parts = {TopicPartition(part.topic, part.partition) for each in lags for part in each.partitions}
        ends = log_ends(self._client, parts, timeout_s=min(self._timeout_s, _ENDS_S))
        if gap := ends.gap():
            what, why = gap
            self._not_asked.append(NotAsked(what=what, why=why))
        return {each.group_id: at_ends(each, ends.known, is_empty=each.group_id in empty) for each in lags}

    # -- transactions ------------------------------------------------------------------------------------------------

    def _transactions(self, coordinators: Mapping[int, Tried]) -> tuple[TransactionFacts, ...]:
        client, timeout_s = self._client, self._timeout_s
        listed = self._ask("transactions", lambda: client.list_transactions(UNFINISHED_STATES, timeout=timeout_s))
        if not listed:
            return ()
        oldest = sorted(listed, key=lambda each: each.started_at_ms or 0)[:_TRANSACTIONS_MAX]
        if len(listed) > len(oldest):
            why = f"only the {_TRANSACTIONS_MAX} oldest of {len(listed)} open transactions were checked"
            self._not_asked.append(NotAsked(what="all open transactions", why=why, is_no_fault=True))
        ids = [each.transactional_id for each in oldest]
        described = self._ask(
            "open transactions", lambda: client.describe_transactions(ids, raise_errors=False, timeout=timeout_s)
        )
        return tuple(
            TransactionFacts(described=each, clock_ahead_ms=_clock_ahead_ms(coordinators, each.coordinator_id))
            for each in described or ()
            if each.error is None
        )

    def _hanging(self, topics: Iterable[TopicDescription]) -> tuple[HangingTransaction, ...]:
        """Partitions without a leader are left out; another rule reports them."""
        partitions = [
            TopicPartition(topic.name, each.partition)
            for topic in topics
            if may_have_hanging(topic)
            for each in topic.partitions
            if each.leader >= 0
        ]
        timeout_s = min(self._timeout_s, _ENDS_S)
        found = self._ask(
            "hanging transactions", lambda: hanging_transactions(self._client, partitions, timeout_s=timeout_s)
        )
        if found is None:
            return ()
        hanging, gap = found
        if gap is not None:
            what, why = gap
            self._not_asked.append(NotAsked(what=f"hanging transactions: {what}", why=why))
        return tuple(hanging)

    def _orphaned(self, groups: Iterable[GroupFacts]) -> tuple[OrphanedOffset, ...]:
        described = [each.described for each in groups]
        found = self._ask(
            "orphaned pending offsets",
            lambda: orphaned_offsets(self._client, described, timeout_s=self._timeout_s),
        )
        return tuple(found or ())


def _with_login(tried: Tried, answer: NodeDescription | Refusal | None) -> Tried:
    """Return ``tried``, completed with the result of the login at the tried address."""
    if isinstance(answer, Refusal):
        return dataclasses.replace(tried, trouble=Trouble.LOGIN, detail=str(answer), refusal=answer)
    return dataclasses.replace(tried, node=answer)


def _clock_ahead_ms(coordinators: Mapping[int, Tried], coordinator_id: int) -> float:
    """How far the coordinator's clock is ahead of this machine's clock; 0 if the coordinator did not describe
    itself."""
    tried = coordinators.get(coordinator_id)
    return 0.0 if tried is None or tried.node is None else tried.node.clock_ahead_ms


def _keeps_everything(values: Mapping[str, ConfigEntry]) -> bool:
    return all(key in values and values[key].value == value for key, value in KEEPS_EVERYTHING.items())


def local_nodes(cluster: ClusterDirectory) -> tuple[LocalNode, ...]:
    """The nodes in cluster.json, with the pids of the running nodes."""
    return tuple(
        LocalNode(
            role=node.role,
            node_id=node.id,
            address=node.address,
            pid=node.pid(),
            log=str(cluster.log_path(node.role, node.id)),
            stopped=node.stopped(),
        )
        for node in cluster.state().nodes
    )


def local_cluster(data: Path, bootstrap: Iterable[str]) -> ClusterDirectory | None:
    """The cluster in the directory ``data``, if ``bootstrap`` has an address of a node of that cluster."""
    cluster = ClusterDirectory(data)
    if not cluster.exists():
        return None
    ours = {node.address for node in cluster.state().nodes}
    return cluster if ours & set(bootstrap) else None


def _grown(
    partition: TopicPartition,
    adding: Iterable[int],
    before: Mapping[int, tuple[LogDirDescription, ...]],
    after: Mapping[int, tuple[LogDirDescription, ...]],
) -> int | None:
    """By how many bytes the replicas on the brokers ``adding`` have grown; None when one of the ``adding`` brokers did
    not answer."""
    grown = 0
    for broker_id in adding:
        if broker_id not in before or broker_id not in after:
            return None
        grown += abs(_size(after[broker_id], partition) - _size(before[broker_id], partition))
    return grown


def _size(directories: tuple[LogDirDescription, ...], partition: TopicPartition) -> int:
    return sum(
        each.size_bytes
        for directory in directories
        for each in directory.replicas
        if (each.topic, each.partition) == partition and not each.is_future
    )
