"""The console's data about the cluster: a sample every few seconds, as in `headrace top`, and the findings of `headrace
doctor`. Pages with lists show the data of the last sample, without further requests."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster_models import TopicDescription
from headrace.group_models import GroupLag
from headrace.models import BrokerInfo
from headrace_core.errors import HeadraceError, NetworkError
from headrace_tools.doctor.diagnosis import diagnose, is_healthy
from headrace_tools.doctor.facts import Facts
from headrace_tools.doctor.findings import Finding
from headrace_tools.doctor.gathering import Gathering, local_cluster
from headrace_tools.local.directory import ClusterDirectory
from headrace_tools.top.frames import Frame, GroupRow, Sample, TopicRow, frame_of
from headrace_tools.top.sampling import Sampling

from .cluster import REQUEST_S, Cluster
from .history import ClusterPoint, History, LagPoint
from .refreshing import Refreshing

#: Seconds between two samples of the cluster: while pages are viewed, and at other times, when only the charts need
#: samples.
SAMPLE_S, IDLE_SAMPLE_S = 4.0, 30.0
#: Pattern of the errors in a sample that are caused by a missing permission of the user.
_REFUSAL = re.compile(r"(?P<what>[^:]+): (?P<why>.*) \[\w+_AUTHORIZATION_FAILED\]\Z", re.DOTALL)
#: The name of the request in a sample that needs DESCRIBE on the cluster.
_CLUSTER_QUESTION = "reassignments"
#: Seconds between two runs of the doctor, which sends more requests; it runs only while pages are viewed.
DOCTOR_S = 15.0


@dataclass(frozen=True)
class View:
    """One sample of the cluster, with its topics, groups and other data by name. ``is_first``: there is no earlier
    sample, so rates are unknown."""

    sample: Sample
    frame: Frame
    is_first: bool

    @functools.cached_property
    def topics(self) -> Mapping[str, TopicDescription]:
        return {topic.name: topic for topic in self.sample.topics}

    @functools.cached_property
    def topic_rows(self) -> Mapping[str, TopicRow]:
        return {row.topic: row for row in self.frame.topics}

    @functools.cached_property
    def groups(self) -> Mapping[str, GroupRow]:
        return {row.group: row for row in self.frame.groups}

    @functools.cached_property
    def lags(self) -> Mapping[str, GroupLag]:
        return {lag.group_id: lag for lag in self.sample.lags}

    @functools.cached_property
    def types(self) -> Mapping[str, str]:
        return {group.group_id: group.type for group in self.sample.groups}

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of all replicas of each topic."""
        found: dict[str, int] = defaultdict(int)
        for (partition, _), count in self.sample.sizes.items():
            found[partition.topic] += count
        return found

    @functools.cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """The groups with committed offsets in each topic."""
        found: dict[str, set[str]] = defaultdict(set)
        for lag in self.sample.lags:
            for part in lag.partitions:
                found[part.topic].add(lag.group_id)
        return {topic: tuple(sorted(groups)) for topic, groups in found.items()}

    @functools.cached_property
    def refused(self) -> Mapping[str, str]:
        """The subjects that this user is not authorized to see, each with the cluster's error message."""
        found = (_REFUSAL.match(error) for error in self.sample.errors)
        return {each["what"]: each["why"] for each in found if each is not None}

    @property
    def failures(self) -> list[str]:
        """The requests of the sample that failed for a reason other than missing rights."""
        return [error for error in self.sample.errors if _REFUSAL.match(error) is None]

    @property
    def may_describe_cluster(self) -> bool:
        return _CLUSTER_QUESTION not in self.refused

    @property
    def knows_sizes(self) -> bool:
        """Whether a broker reported the sizes of its logs. If no broker reported the sizes of its logs, the sizes are
        unknown, not 0."""
        return bool(self.sample.sizes_at_s)

    def broker(self, broker_id: int) -> BrokerInfo | None:
        return next((each for each in self.sample.brokers if each.broker_id == broker_id), None)

    def lags_since_ms(self, group_id: str) -> int | None:
        """Wall-clock time at which the oldest unread record of the group was written; None if there is no lag, or if
        the time is unknown."""
        row = self.groups.get(group_id)
        return None if row is None or not row.lag or row.lag_ms is None else self.sample.at_ms - row.lag_ms


@dataclass(frozen=True)
class Diagnosis:
    facts: Facts
    findings: tuple[Finding, ...]
    is_healthy: bool


class Watching:
    """Takes samples and runs the doctor, in threads, with the clients of ``cluster``. ``is_shared``: all visitors of an
    open cluster share the samples; the sampling then continues while no page is viewed. A user's samples are taken with
    this user's rights, and stop while the user views no page."""

    def __init__(self, cluster: Cluster, *, is_shared: bool = True) -> None:
        self._cluster, self._is_shared = cluster, is_shared
        self.history = History()
        self._sampling = Sampling(cluster.blocking)
        self._before: Sample | None = None
        self.view = Refreshing(
            "the cluster",
            self._sample,
            interval_s=SAMPLE_S,
            idle_interval_s=IDLE_SAMPLE_S if is_shared else None,
        )
        self.diagnosis = Refreshing("the doctor", self._diagnose, interval_s=DOCTOR_S, idle_interval_s=None)

    async def _sample(self) -> View:
        sample = await self._cluster.in_thread(self._sampling.sample)
        before, self._before = self._before, sample
        frame = frame_of(before or sample, sample)
        self.history.add(*_points(sample, frame))
        return View(sample, frame, is_first=before is None)

    async def _diagnose(self) -> Diagnosis:
        return await self._cluster.in_thread(self._asked)

    def _asked(self) -> Diagnosis:
        local = self._local()
        gathering = Gathering(self._cluster.blocking, timeout_s=REQUEST_S, look_s=1.0, tls=self._cluster.tls())
        facts = gathering.facts(self._cluster.settings.bootstrap_servers, local)
        if facts.cluster is None:
            why = facts.not_asked[0].why if facts.not_asked else "no answer"
            raise NetworkError(f"cannot read the state of the cluster from any node: {why}")
        return Diagnosis(facts, tuple(diagnose(facts)), is_healthy(facts))

    def _local(self) -> ClusterDirectory | None:
        settings = self._cluster.settings
        if not self._is_shared and not (self.view.last is not None and self.view.last.value.may_describe_cluster):
            return None  # users see processes and paths of this machine if they may describe the cluster
        try:
            return local_cluster(Path(settings.directory), settings.bootstrap_servers) if settings.directory else None
        except HeadraceError:  # the directory is missing or damaged, although the cluster may still work
            return None


def _points(sample: Sample, frame: Frame) -> tuple[ClusterPoint, dict[str, LagPoint]]:
    point = ClusterPoint(sample.at_ms, frame.records_per_s, frame.bytes_per_s, frame.total_lag)
    lags = {row.group: LagPoint(sample.at_ms, row.lag, row.lag_ms) for row in frame.groups if row.lag is not None}
    return point, lags


def finding_rows(diagnosis: Diagnosis) -> list[dict[str, str]]:
    return [dataclasses.asdict(finding) for finding in diagnosis.findings]
