"""The promises of brokers, checked against their state after every event.

*Committed* are all records below the high watermark of any replica. When a replica's high watermark advances, its log
below the high watermark must equal the log of every other replica below that replica's high watermark (promise 2,
KIP-101, KIP-279, KIP-497). A record acknowledged with acks=all is committed, once, at its acknowledged offset (promise
1, idempotence); a cleanly elected leader has all such records (KIP-966, KIP-903). After an unclean election of a
partition, only one check remains: at the end of the schedule, all its replicas are equal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.requests import AlteredPartition, AlterPartition
from headrace_core.errors import CorruptLogError, HeadraceError
from headrace_core.log import PartitionLog
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.records import decode_batch, iterate_headers
from headrace_core.types import NO_LEADER, TopicPartition
from tests.simulation.broker_upkeep_checks import ANYWHERE, READ_BYTES, StartSeen, UpkeepChecks
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from headrace_broker.partition import PartitionLeader
    from tests.simulation.broker_clients import ConsumerModel, ProducerModel
    from tests.simulation.broker_node import Broker, BrokerHost
    from tests.simulation.broker_sim_world import BrokerWorld

#: The controllers refuse one proposal of a leader at most this many times because a member is fenced. In a first run
#: without the guard against fenced members, 4 of 59 schedules had 5 or 6 refusals of one proposal. With the guard no
#: schedule had more than one refusal of a proposal.
REFUSALS_MAX = 3


class Truth:
    """The committed records of one partition."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.partition = TopicPartition("orders", number)
        self.end = 0
        #: No replica's log may start beyond this offset, because no more records were deleted.
        self.start_max = 0
        #: The committed batches by base offset, byte for byte.
        self.batches: dict[int, bytes] = {}
        #: The committed values by offset, and the offsets by value.
        self.values: dict[int, bytes] = {}
        self.offsets: dict[bytes, int] = {}
        #: The last record of each producer.
        self.last: dict[bytes, int] = {}
        #: The epoch and the last committed offset of each producer id; without a batch of this epoch: -1.
        self.producers: dict[int, tuple[int, int]] = {}
        self.is_tainted = False
        #: The offsets up to which operators requested deletions; the last known log starts by host; the replicas that a
        #: host has lost.
        self.asked: set[int] = set()
        self.starts: dict[int, StartSeen] = {}
        self.durable: dict[PartitionLog, int] = {}
        self.removed: Counter[int] = Counter()
        #: For a compacted topic: the (key, value) of each offset, and the rising offsets of each key.
        self.records: dict[int, tuple[bytes, bytes]] = {}
        self.of_key: defaultdict[bytes, list[int]] = defaultdict(list)


class BrokerChecks(UpkeepChecks):
    """Checks the promises of the module's docstring. The world calls ``look`` after each turn of a broker's event
    loop."""

    def __init__(self, world: BrokerWorld) -> None:
        self.world = world
        self.truths = [Truth(number) for number in range(world.plan.partitions)]
        self._seen: dict[tuple[int, int, int], int] = {}
        self._led: dict[tuple[int, int, int], int] = {}
        #: How often the controllers refused a leader's proposal because of a fenced member.
        self._refusals: Counter[tuple[Any, ...]] = Counter()
        #: value -> acknowledged offset.
        self._acknowledged: dict[bytes, int] = {}
        self._idempotent: set[bytes] = set()

    def is_tainted(self, partition: int) -> bool:
        return self.truths[partition].is_tainted

    # -- after every event -------------------------------------------------------------------------------------------

    def look(self, host: BrokerHost, broker: Broker) -> None:
        if not broker.acting:
            return
        for truth in self.truths:
            partition = truth.partition
            replica: Any = broker.partitions.led.get(partition)
            if replica is not None:
                high_watermark = replica.leader.high_watermark
                epoch = replica.leader.leader_epoch
                life = (host.number, host.life, truth.number)
                if self._led.get(life) != epoch:
                    self._led[life] = epoch
                    self._elected(host, truth, replica)
            else:
                replica = broker.partitions.followed.get(partition)
                if replica is None:
                    continue
                high_watermark = replica.high_watermark
            self._look_at(host, truth, replica.log, high_watermark)

    def answered(self, host: BrokerHost, replica: Any, result: Any) -> None:
        """A leader answers a producer; the leader may have lost its leadership by the end of its turn. Acknowledged
        records must be on the leader's disk, because the topic's ``log.flush`` is ``commit``."""
        truth = self.truths[replica.partition.partition]
        if not isinstance(result, HeadraceError) and result.base_offset >= replica.log.flushed_end:
            raise Violation(
                "durable",
                f"{host}: an append at {result.base_offset} of {replica.partition} was acknowledged, but the log is "
                f"flushed only up to {replica.log.flushed_end}",
            )
        self._look_at(host, truth, replica.log, replica.leader.high_watermark)

    def isr_refused(self, host: BrokerHost, proposal: AlteredPartition) -> None:
        """The controllers have refused a leader's proposal because a member is fenced. A leader that repeats the
        proposal says that it is uncertain, and the controllers end the partition epoch (KIP-497). If the partition
        epoch did not end, the leader would wait for the fenced member for as long as the member is fenced."""
        key = host.number, host.life, replace(proposal, uncertain=True)
        self._refusals[key] += 1
        if self._refusals[key] > REFUSALS_MAX:
            raise Violation(
                "liveness",
                f"{host} got INELIGIBLE_REPLICA {self._refusals[key]} times for the same in-sync set {proposal.isr} of "
                f"partition {proposal.partition}, and partition epoch {proposal.partition_epoch} did not end",
            )

    def _look_at(self, host: BrokerHost, truth: Truth, log: PartitionLog, high_watermark: int) -> None:
        key = (host.number, host.life, truth.number)
        if not log.is_closed:
            self.start_seen(host, log)
        seen = self._seen.get(key, -1)
        if high_watermark > seen:
            start = seen if seen >= 0 else min(high_watermark, truth.end) - 40  # the rest is compared at the end
            self._seen[key] = self._advanced(host, truth, log, start, high_watermark)
        elif high_watermark < seen:
            self._seen[key] = high_watermark

    def _elected(self, host: BrokerHost, truth: Truth, replica: Any) -> None:
        leader = replica.leader
        self.world.count("state", "leader elected")
        self.world.tell(
            host, f"leads {replica.partition} in epoch {leader.leader_epoch}, up to {leader.log_end}, {leader.isr}"
        )
        topic = self.world.image.topic("orders")
        if truth.is_tainted or topic is None or topic.partitions[truth.number].leader_epoch != leader.leader_epoch:
            return  # (a leader that learns late of its election commits nothing: another one leads by now)
        if host.is_copy and leader.log_end < truth.end:
            self.world.count("copy", "led until a follower refused")
            return
        if leader.log_end < truth.end:
            raise Violation(
                "elections",
                f"{host} leads {replica.partition} in epoch {leader.leader_epoch} with a log that ends at "
                f"{leader.log_end}, but records up to {truth.end} are committed",
            )
        self._compare(host, truth, replica.log, max(leader.log_start, truth.end - 40), truth.end)
        for producer_id, committed in truth.producers.items():
            entry = replica.log.producers.get(producer_id)
            known = (-1, -1) if entry is None else (entry.epoch, entry.last_batch.last_offset if entry.batches else -1)
            if known < committed:
                raise Violation(
                    "producers",
                    f"{host} leads {replica.partition} from offset {leader.log_start} on, and knows of producer "
                    f"{producer_id} only (epoch, last offset) {known}, but {committed} is committed: it would take a "
                    "repeated batch for a new one",
                )

    def _advanced(self, host: BrokerHost, truth: Truth, log: PartitionLog, start: int, high_watermark: int) -> int:
        """Check the new part below a replica's high watermark; return the offset up to which it could be read."""
        if truth.is_tainted or log.is_closed:
            return high_watermark
        start = max(start, log.log_start_offset)
        return self._compare(host, truth, log, start, high_watermark)

    def _compare(self, host: BrokerHost, truth: Truth, log: PartitionLog, start: int, end: int) -> int:
        at = max(start, log.log_start_offset)
        while at < end:
            try:
                found = log.read(at, READ_BYTES, end)
                if (found is None or not found.records) and end in truth.asked and end <= truth.start_max:
                    # The high watermark of a leader that restarts begins at its log start. DeleteRecords may set the
                    # log start inside a batch: then the whole batch is committed.
                    found = log.read(at, 1)
            except CorruptLogError:  # the replica serves none of these records, and is repaired
                if at >= truth.end:
                    return start
                at = truth.end
                continue
            except HeadraceError as error:
                raise Violation(
                    "high watermark", f"{host}: {log.topic_partition} at {at}, below {end}: {error}"
                ) from error
            if found is None or not found.records:
                if self.world.plan.compacts:
                    # (A replica that catches up copies a log that its leader has compacted further; see ``compacted``.)
                    self.superseded(host, truth, at, min(end, truth.end), ANYWHERE)
                    break
                raise Violation(
                    "high watermark",
                    f"{host}: {log.topic_partition} has no batch at {at}, below the high watermark {end}",
                )
            self._match(host, truth, found.records, at)
            at = found.next_offset
        return end

    def _match(self, who: object, truth: Truth, records: bytes, start: int) -> None:
        at = start
        if self.world.plan.compacts:
            known_end = truth.end
            self.match_compacted(who, truth, records, at, ANYWHERE)
            records = _behind(records, known_end)
            at = max(at, known_end)
        for position, header in iterate_headers(records):
            batch = records[position : position + header.size]
            known = truth.batches.get(header.base_offset)
            if header.base_offset > at and known is not None:
                raise Violation("hole", f"{who}: partition {truth.number} has a gap from {at} to {header.base_offset}")
            at = header.next_offset
            if known is not None:
                if known != batch:
                    raise Violation(
                        "prefix",
                        f"{who}: the committed batch at {header.base_offset} of partition {truth.number} was "
                        f"{_shown(known)}, and is now {_shown(batch)}",
                    )
                continue
            if header.base_offset != truth.end:
                raise Violation(
                    "prefix",
                    f"{who}: a committed batch of partition {truth.number} begins at {header.base_offset}, but the "
                    f"committed batches end at {truth.end} (read from {start}): {_shown(batch)}",
                )
            self._commit(truth, header.base_offset, batch)
            if header.producer_id >= 0:
                # A marker with a new epoch begins a producer without batches (KIP-890).
                last = header.producer_epoch, -1 if header.is_control else header.next_offset - 1
                truth.producers[header.producer_id] = max(truth.producers.get(header.producer_id, last), last)
            truth.end = header.next_offset

    def _commit(self, truth: Truth, base_offset: int, batch: bytes) -> None:
        truth.batches[base_offset] = batch
        for record in decode_batch(batch):
            value = bytes(record.value or b"")
            if value in truth.offsets and value in self._idempotent:
                raise Violation(
                    "doubled", f"{value!r} is committed at {truth.offsets[value]} and again at {record.offset}"
                )
            producer, _, number = value.partition(b"/")
            last = truth.last.get(producer, -1)
            if value in self._idempotent and int(number) != last + 1:
                raise Violation("order", f"producer {producer!r}: record {number!r} is committed after {last}")
            if value not in self._idempotent and int(number) <= last and self.world.quality.reordering == 0.0:
                self.world.count("state", "records without idempotence out of order")
            truth.last[producer] = max(last, int(number))
            truth.values[record.offset] = value
            if self.world.plan.compacts:
                truth.records[record.offset] = bytes(record.key or b""), value
                truth.of_key[truth.records[record.offset][0]].append(record.offset)
            truth.offsets[value] = record.offset

    # -- clients -----------------------------------------------------------------------------------------------------

    def sent(self, producer: ProducerModel, values: list[bytes]) -> None:
        if producer.kind == "idempotent":
            self._idempotent.update(values)

    def acknowledged(self, producer: ProducerModel, values: list[bytes], base_offset: int) -> None:
        truth = self.truths[producer.partition]
        for index, value in enumerate(values):
            self._acknowledged[value] = base_offset + index
            if truth.is_tainted:
                continue
            if truth.values.get(base_offset + index) != value:
                raise Violation(
                    "acknowledged",
                    f"{producer} got offset {base_offset + index} for {value!r}, but the committed value at "
                    f"{base_offset + index} is {truth.values.get(base_offset + index)!r}",
                )

    def answered_again(self, producer: ProducerModel, values: list[bytes], base_offset: int) -> None:
        """The answer to a repeated append: a duplicate must get the offset of the first append."""
        known_base = self._acknowledged.get(values[0])
        if known_base is not None and known_base != base_offset and not self.is_tainted(producer.partition):
            raise Violation(
                "duplicates", f"{producer} first got offset {known_base} for {values[0]!r}, and now {base_offset}"
            )
        self.world.count("state", "duplicate answered")

    def latest_answered(self, partition: int, leader: PartitionLeader) -> None:
        """A leader reports the end of the committed records; a deposed leader that does not know it yet must not answer
        (KIP-207)."""
        truth, topic = self.truths[partition], self.world.image.topic("orders")
        if truth.is_tainted or topic is None or topic.partitions[partition].leader_epoch != leader.leader_epoch:
            return
        host = self.world.host_of(leader.leader_id)
        if leader.high_watermark < truth.end and not (host is not None and host.is_copy):
            raise Violation(
                "latest",
                f"broker {leader.leader_id} reports the end {leader.high_watermark} of partition {partition}, but "
                f"records up to {truth.end} are committed",
            )

    def reads_on(self, consumer: ConsumerModel, replica: Any, position: int) -> None:
        """A leader returns the next records to a consumer: its log must have the records that the consumer has read
        before, from any leader (KIP-320). The check of consumers also holds after an unclean election: records may be
        truncated, but no consumer that has read them may continue after them without an error."""
        last = consumer.last
        if last is None or last[1] != position or self.world.plan.compacts:  # (the records that it has read may differ)
            return
        base_offset, _, batch = last
        try:
            found = replica.log.read(base_offset, 1)
        except HeadraceError:  # damaged, or deleted by retention
            return
        if found is None or bytes(found.records[: len(batch)]) != batch:
            raise Violation(
                "truncation",
                f"{consumer} has read {_shown(batch)}, which {replica.partition} no longer has in leader epoch "
                f"{replica.leader.leader_epoch}, and continues to read at {position}",
            )

    def truncated(self, consumer: ConsumerModel, partition: int, position: int, end_offset: int) -> None:
        """A consumer learns that the log was truncated below its position. Only a copy of the present epoch may say so
        wrongly, until a follower refuses."""
        if any(host.is_copy for host in self.world.hosts):
            self.world.count("copy", "told a reader of a truncation")
        elif not self.is_tainted(partition) and position > self.truths[partition].start_max:
            raise Violation(
                "truncation",
                f"{consumer} has read up to {position}, but is told that the log was truncated at {end_offset}",
            )
        self.world.count("state", "reader was told of a truncation")

    def consumed(self, consumer: ConsumerModel, partition: int, position: int, records: bytes) -> int:
        """Note the records that a consumer received, and the offset at which it continues."""
        truth = self.truths[partition]
        if self.world.plan.compacts:
            self.match_compacted(consumer, truth, records, position, ANYWHERE)
            ends = [header.next_offset for _, header in iterate_headers(records)]
            if ends and max(ends) > truth.end:
                raise Violation(
                    "consumers",
                    f"{consumer} got records up to {max(ends)}, but only records up to {truth.end} are committed",
                )
            return max([position, *ends])
        for at, header in iterate_headers(records):
            if header.next_offset <= position:
                continue
            if not truth.is_tainted:
                batch = records[at : at + header.size]
                if header.base_offset > position:
                    raise Violation(
                        "consumers", f"{consumer} was at {position}, but got the batch at {header.base_offset}"
                    )
                known = truth.batches.get(header.base_offset)
                if known is None or known != batch:
                    raise Violation(
                        "consumers",
                        f"{consumer} reads {_shown(batch)}, but the committed batch there is "
                        f"{'nothing' if known is None else _shown(known)}",
                    )
            position = header.next_offset
        return position

    # -- the metadata ------------------------------------------------------------------------------------------------

    def metadata_changed(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        topic = image.topic("orders")
        for topic_id, numbers in delta.partitions.items():
            for number in sorted(numbers) if topic is not None and topic_id == topic.topic_id else ():
                old, new = before.partition(topic_id, number), image.partition(topic_id, number)
                if old is None or new is None:
                    continue
                self.world.tell(
                    "controllers",
                    f"partition {number}: leader {new.leader} in epoch {new.leader_epoch}, in sync {list(new.isr)}, "
                    f"eligible {list(new.elr)}, replicas {list(new.replicas)}, partition epoch {new.partition_epoch}",
                )
                if new.leader not in (old.leader, NO_LEADER) and new.leader not in (
                    *old.isr,
                    *old.elr,
                    *old.last_known_elr,
                    *self._in_sync_by_its_leader(topic_id, number),
                ):
                    self._unclean(number, new.leader)
                if new.recovering and not old.recovering:
                    self._unclean(number, new.leader)
                self.truths[number].removed.update(set(old.replicas) - set(new.replicas))
                if len(new.isr) > len(old.isr):
                    self.world.count("state", "in-sync set grew")
                elif len(new.isr) < len(old.isr):
                    self.world.count("state", "in-sync set shrank")

    def _in_sync_by_its_leader(self, topic_id: bytes, number: int) -> tuple[int, ...]:
        """The in-sync set that the leader requests in the AlterPartition request that is being decided. With the
        decision, a leader that cannot lead may hand over to the joining replica at once. From its request on, the
        leader commits nothing without the replicas of the requested set."""
        request = self.world.deciding
        if not isinstance(request, AlterPartition):
            return ()
        return tuple(
            member
            for item in request.partitions
            if (item.topic_id, item.partition) == (topic_id, number)
            for member, _ in item.isr
        )

    def _unclean(self, number: int, leader: int) -> None:
        if not self.world.plan.unclean:
            raise Violation(
                "elections", f"broker {leader} was elected uncleanly, although no unclean election was requested"
            )
        self.truths[number].is_tainted = True
        self.world.count("state", "unclean election")

    # -- at the end --------------------------------------------------------------------------------------------------

    def why_not_well(self) -> str | None:
        world = self.world
        for host in world.hosts:
            broker = world.image.brokers.get(host.number)
            if not host.is_up or broker is None or broker.fenced or not host.broker or not host.broker.is_serving:
                return f"{host} does not serve"
        topic = world.image.topic("orders")
        assert topic is not None
        for number, state in enumerate(topic.partitions):
            if state.leader == NO_LEADER:
                return f"nobody leads partition {number}"
            if len(state.isr) < len(state.replicas):
                return f"in sync in partition {number} are {list(state.isr)} of {list(state.replicas)}"
        return None

    def why_not_equal(self) -> str | None:
        why = self.why_not_well()
        if why is not None:
            return why
        if not all(producer.is_idle for producer in self.world.producers):
            return "a producer waits for its last answers"
        for truth in self.truths:
            ends, starts, leads_from = [], {}, -1
            for host, log in self._logs(truth.number):
                assert host.broker is not None
                damage = damage_in(log)
                if damage is not None:  # not read since: in the product, the scrubber reads it
                    assert host.loop is not None
                    host.loop.run(host.broker.roles.quarantine, log, damage)
                    return f"{host}: {damage.message}"
                partition = TopicPartition("orders", truth.number)
                led = host.broker.partitions.led.get(partition)
                replica: Any = host.broker.partitions.followed.get(partition)
                high_watermark = (
                    led.leader.high_watermark if led is not None else getattr(replica, "high_watermark", -1)
                )
                ends.append((host.number, log.log_end_offset, high_watermark))
                starts[host.number] = log.log_start_offset
                leads_from = led.leader.log_start if led is not None else leads_from
            if len({end for _, end, _ in ends} | {mark for _, _, mark in ends}) != 1 or len(ends) < 3:
                return f"(broker, log end, high watermark) of partition {truth.number}: {ends}"
            if min(starts.values()) < leads_from:
                return f"partition {truth.number} begins at {leads_from}, and its replicas at {starts}"
        return None

    def _logs(self, number: int) -> list[tuple[BrokerHost, PartitionLog]]:
        topic = self.world.image.topic("orders")
        assert topic is not None
        found = []
        for host in self.world.hosts:
            if host.number in topic.partitions[number].replicas and host.broker is not None:
                log = host.broker.storage.log(TopicPartition("orders", number))
                if log is not None:
                    found.append((host, log))
        return found

    def final(self) -> None:
        """Read every log to its end: each in-sync replica must hold all committed records, and the logs must be
        equal."""
        for truth in self.truths:
            topic = self.world.image.topic("orders")
            assert topic is not None
            held = {host.number: (host, batches_of(log), log) for host, log in self._logs(truth.number)}
            in_sync = topic.partitions[truth.number].isr
            missing = [number for number in in_sync if number not in held]
            if missing:
                raise Violation("lost", f"brokers {missing} are in sync in partition {truth.number}, but have no log")
            first: tuple[BrokerHost, dict[int, bytes]] | None = None
            start = max(log.log_start_offset for _, _, log in held.values())
            for number in in_sync:
                host, batches, log = held[number]
                if not truth.is_tainted:
                    self._holds_all(host, truth, log, batches)
                # (A replica may have deleted more records than its leader, if the leader was down when the other
                # replicas deleted them.)
                batches = {base: batch for base, batch in batches.items() if next_offset_of(batch) > start}
                if first is None:
                    first = host, batches
                elif batches != first[1] and not self.world.plan.compacts:
                    raise Violation("equal", f"the logs of {first[0]} and {host} differ in partition {truth.number}")
        self._acknowledged_are_committed()

    def _holds_all(self, host: BrokerHost, truth: Truth, log: PartitionLog, batches: dict[int, bytes]) -> None:
        """Check one in-sync replica: it must have every committed batch, byte for byte, from its log start on."""
        start = log.log_start_offset
        if start > truth.start_max:
            raise Violation(
                "log start",
                f"{host}: partition {truth.number} starts at {start}, but no deletion above {truth.start_max} was "
                "requested",
            )
        self._match(host, truth, b"".join(batches.values()), start)
        if self.world.plan.compacts:
            self.superseded(host, truth, log.log_end_offset, truth.end, truth.end)
            return
        for base_offset, batch in truth.batches.items():
            if base_offset not in batches and next_offset_of(batch) > start:
                raise Violation(
                    "lost",
                    f"{host} is in sync, but its log, from {start} to {log.log_end_offset}, lacks a committed batch "
                    f"of partition {truth.number}: {_shown(batch)}",
                )

    def _acknowledged_are_committed(self) -> None:
        """Check that all acknowledged records are in the logs read by ``_holds_all``, at their offsets."""
        for producer in self.world.producers:
            truth = self.truths[producer.partition]
            if truth.is_tainted:
                continue
            prefix = b"%d/" % producer.number
            for value, offset in self._acknowledged.items():
                if value.startswith(prefix) and truth.values.get(offset) != value:
                    raise Violation(
                        "lost",
                        f"{value!r} was acknowledged at {offset}, but the committed value there is "
                        f"{truth.values.get(offset)!r}",
                    )


def batches_of(log: PartitionLog) -> dict[int, bytes]:
    """All batches of a log, from its start to its end, by base offset."""
    batches: dict[int, bytes] = {}
    at = log.log_start_offset
    while at < log.log_end_offset:
        found = log.read(at, READ_BYTES)
        if found is None or not found.records:
            if log.may_have_gaps():
                break
            raise Violation(
                "lost", f"{log.topic_partition} has no batch at {at}, although it ends at {log.log_end_offset}"
            )
        for position, header in iterate_headers(found.records):
            batches[header.base_offset] = bytes(found.records[position : position + header.size])
        at = found.next_offset
    return batches


def _behind(records: bytes, offset: int) -> bytes:
    """The batches whose base offset is ``offset`` or larger."""
    for position, header in iterate_headers(records):
        if header.base_offset >= offset:
            return records[position:]
    return b""


def next_offset_of(batch: bytes) -> int:
    (header,) = [header for _, header in iterate_headers(batch)]
    return header.next_offset


def damage_in(log: PartitionLog) -> CorruptLogError | None:
    """The errors that a reader of the whole log meets."""
    at = log.log_start_offset
    try:
        while at < log.log_end_offset:
            found = log.read(at, READ_BYTES)
            assert found is not None
            at = found.next_offset
    except CorruptLogError as error:
        return error
    return None


def _shown(batch: bytes) -> str:
    (header,) = [header for _, header in iterate_headers(batch)]
    values = [bytes(record.value or b"").decode() for record in decode_batch(batch, check_crc=False)]
    return f"{header.base_offset}..{header.last_offset} of epoch {header.leader_epoch}: {','.join(values)}"
