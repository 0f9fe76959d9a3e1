"""The checks that must hold after every event. The checks are cheap because they look only at changes. The checks do
not depend on the product's code. The input of the checks is the data that nodes write to disks, send to each other and
to clients, and publish. The checks keep the *history*, which is the one sequence of committed batches, and replay it
into the *reference* images, with which all images of nodes are compared.

    votes            a replica (a node on its disk) votes for at most one candidate in a term, even after a crash (5.2)
    leaders          a term has at most one leader (5.2)
    identity         no node sends messages in the name of a disk that it no longer has (KIP-853)
    durability       the data that a replica reports is on its disk (5.1, 5.3), and is still there after a crash
    log matching     entries with the same offset and term are equal in all logs, and so are all earlier entries (5.3)
    commitment       a committed entry has been on the disks of a majority of the voters, and a leader commits only up
                     to an entry of its own term (5.4.2; etcd 14370)
    voters           the latest set in a log counts; a leader changes it only after the previous change and an entry
                     of its own term are committed (T 4.1)
    completeness     a leader has all entries that were committed in earlier terms (5.4)
    state machines   the committed entry at an offset is the same on all nodes and never changes (5.4.3); images of
                     equal offsets are equal
    histories        acknowledged requests are committed once, refused requests never; reads see all earlier commits
                     (sim_clients.py)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from headrace_controller.raft import (
    AppendResponse,
    Entry,
    EntryKind,
    Message,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
    VoterSet,
)
from headrace_core.metadata import EMPTY_IMAGE, MetadataDelta, MetadataImage, MetadataRecord
from headrace_core.metadata.codec import MetadataBatch, decode_batches
from headrace_core.testing.histories import HistoryViolation, ReadHistory, WriteHistory
from headrace_core.testing.verdicts import SafetyViolation


class Violation(SafetyViolation):
    """A promise of the product was broken. ``check`` names the broken promise, for the table of mutants and the checks
    that found them."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check
        self.message = message

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return Violation, (self.check, self.message)


@dataclass(slots=True)
class ShadowLog:
    """The log of a replica as written to its disk; ``durable``: the entries whose write has returned."""

    entries: list[Entry]
    #: Ends of the entries, for searching.
    ends: list[int]
    #: The offset at which the first entry begins.
    base: int = 0
    #: Entries below this offset have been compared with the committed history.
    checked: int = 0

    @classmethod
    def behind(cls, offset: int) -> ShadowLog:
        """An empty log that begins at ``offset``; the entries below are in a snapshot of committed entries."""
        return cls([], [], offset, offset)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.base

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.ends.append(entry.next_offset)

    def truncate(self, offset: int) -> None:
        keep = bisect_right(self.ends, offset)
        del self.entries[keep:], self.ends[keep:]

    def index_of(self, offset: int) -> int:
        """The index of the first entry that ends beyond ``offset``."""
        return bisect_right(self.ends, offset)


class SafetyChecks:
    """See the module."""

    def __init__(self) -> None:
        self.leaders: dict[int, ReplicaKey] = {}
        self.history: list[Entry] = []
        self.writes = WriteHistory()
        self.reads = ReadHistory()
        #: The reference image after each committed batch, by offset.
        self.reference: dict[int, MetadataImage] = {0: EMPTY_IMAGE}
        self.latest: MetadataImage = EMPTY_IMAGE
        self.latest_delta: MetadataDelta | None = None
        #: Called with each new reference image and its delta, to check the cluster's invariants.
        self.on_image: list[
            Callable[[MetadataImage, MetadataImage, MetadataDelta, Sequence[MetadataRecord]], None]
        ] = []
        self.marks_of: Callable[[MetadataRecord], Hashable | None] = lambda record: None
        self._ends: list[int] = []
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        #: For each entry, the replicas that ever had it on disk.
        self._holders: dict[tuple[int, int], set[ReplicaKey]] = {}

    @property
    def committed(self) -> int:
        """The end offset of the history."""
        return self._ends[-1] if self._ends else 0

    # -- what is said -------------------------------------------------------------------------------------------------

    def said(self, own: ReplicaKey, term: int, shadow: ShadowLog, message: Message) -> None:
        """Check a message of replica ``own`` in ``term``; ``own`` names the disk of the machine that wrote the message.

        A response to the leader of an earlier term may refer to entries that a later leader has replaced. A response to
        the leader of an earlier term can commit nothing, because the later leader's voters that lacked the entry do not
        count in that term.
        """
        sender, to, body = message
        if sender != own:
            raise Violation("identity", f"{own} sends a message as {sender}, whose disk was erased (KIP-853)")
        kind = type(body)
        if kind is AppendResponse:
            assert isinstance(body, AppendResponse)
            if not body.is_rejected and body.term == term and body.match.offset > shadow.end:
                raise Violation(
                    "durability",
                    f"{own} reports that it has all entries below {body.match}, but its disk ends at {shadow.end}",
                )
        elif kind is VoteResponse:
            assert isinstance(body, VoteResponse)
            if body.is_granted and not body.is_pre_vote:
                self._voted(own, body.asked_term, to)
        elif kind is VoteRequest:
            assert isinstance(body, VoteRequest)
            if not body.is_pre_vote:
                self._voted(own, body.term, own)

    def _voted(self, voter: ReplicaKey, term: int, candidate: ReplicaKey) -> None:
        before = self._votes.setdefault((voter, term), candidate)
        if before != candidate:
            raise Violation(
                "votes", f"{voter} votes for {candidate} in term {term}, but has already voted for {before} (5.2)"
            )

    # -- logs ---------------------------------------------------------------------------------------------------------

    def appended(self, own: ReplicaKey, shadow: ShadowLog, entries: Sequence[Entry], previous_term: int) -> None:
        """Called before ``entries`` are written to the disk of ``own``, whose log ends in ``previous_term``."""
        for entry in entries:
            key = (entry.base_offset, entry.term)
            known = self._entries.get(key)
            if known is None:
                self._entries[key] = (entry, previous_term)
            else:
                if known[0] is not entry and (known[0].data != entry.data or known[0].kind is not entry.kind):
                    raise Violation(
                        "log matching",
                        f"{own} has a different entry at {entry.base_offset}/{entry.term} than other replicas (5.3)",
                    )
                if known[1] != previous_term:
                    raise Violation(
                        "log matching",
                        f"{own} has {_named(entry)} after term {previous_term}, other replicas after {known[1]}",
                    )
            previous_term = entry.term
            if entry.voters is not None and self.leaders.get(entry.term) == own:
                self._changes_voters(own, shadow, entries, entry)

    def _changes_voters(self, own: ReplicaKey, shadow: ShadowLog, entries: Sequence[Entry], entry: Entry) -> None:
        """Check a new set of voters that the leader of this term has put into its log."""
        before = [
            each for each in (*shadow.entries[shadow.index_of(self.committed) :], *entries) if each.voters is not None
        ]
        open_ = [each for each in before if self.committed < each.next_offset <= entry.base_offset]
        if open_:
            raise Violation(
                "voters", f"{own} changes the voters to {entry.voters}, but {_named(open_[0])} is not committed (T 4.1)"
            )
        if not self.history or self.history[-1].term < entry.term:
            raise Violation(
                "voters",
                f"{own} changes the voters, but no entry of its term {entry.term} is committed (T 4.1, the fix)",
            )

    def durable(self, own: ReplicaKey, entries: Sequence[Entry]) -> None:
        """Called when ``entries`` are on the disk of ``own``."""
        for entry in entries:
            key = (entry.base_offset, entry.term)
            holders = self._holders.get(key)
            if holders is None:
                self._holders[key] = {own}
            else:
                holders.add(own)

    def lost(self, own: ReplicaKey, entries: Sequence[Entry]) -> None:
        """Called when the disk of ``own`` is replaced by a copy without ``entries``."""
        for entry in entries:
            self._holders.get((entry.base_offset, entry.term), set()).discard(own)

    def counts(self, own: ReplicaKey, term: int, committed: int, term_below: int | None) -> None:
        """Called when ``own``, the leader of ``term``, counts all entries below ``committed`` as committed."""
        if term_below != term:
            raise Violation(
                "commitment",
                f"{own} leads in {term}, and commits up to {committed}, where term {term_below} ends (5.4.2)",
            )

    def leads(self, own: ReplicaKey, term: int, has: Callable[[int, int], bool]) -> None:
        """Called when ``own`` becomes leader in ``term``; ``has(offset, term)`` says whether its log has an entry of
        that term which ends there."""
        leader = self.leaders.setdefault(term, own)
        if leader != own:
            raise Violation("leaders", f"{leader} and {own} both lead in term {term} (5.2)")
        self.complete(own, term, has)

    def complete(self, own: ReplicaKey, term: int, has: Callable[[int, int], bool]) -> None:
        """Check that a leader has all committed entries. Logs that match in one entry match in all earlier entries, so
        the last committed entry of earlier terms is enough."""
        for entry in reversed(self.history):
            if entry.term < term:
                if not has(entry.next_offset, entry.term):
                    raise Violation(
                        "completeness",
                        f"{own} leads in term {term} without {_named(entry)}, which is committed (5.4)",
                    )
                return

    def committed_at(
        self, own: ReplicaKey, shadow: ShadowLog, committed: int, voter_sets: Callable[[], Sequence[VoterSet]]
    ) -> bool:
        """A replica reports committed entries; return True if they are new to the history. ``voter_sets``: the sets of
        voters that counted for this replica, in order."""
        ends, history = self._ends, self.history
        if shadow.checked >= committed:
            return False
        start = shadow.index_of(shadow.checked)
        is_news = False
        for number in range(start, len(shadow.entries)):
            entry = shadow.entries[number]
            if entry.next_offset > committed:
                break
            if entry.next_offset <= self.committed:
                at = bisect_right(ends, entry.base_offset)
                known = history[at]
                if known is not entry and (
                    known.base_offset != entry.base_offset or known.term != entry.term or known.data != entry.data
                ):
                    raise Violation(
                        "state machines",
                        f"{own} has {_named(entry)} committed where {_named(known)} is committed (5.4.3)",
                    )
            else:
                if entry.base_offset != self.committed:
                    raise Violation(
                        "state machines",
                        f"{own} commits {_named(entry)}, which does not begin at the end {self.committed} of the "
                        "committed entries (5.4.3)",
                    )
                self._extend(entry)
                is_news = True
                last = entry
            shadow.checked = entry.next_offset
        if is_news:
            self._check_majority(own, last, voter_sets())
        return is_news

    def _check_majority(self, own: ReplicaKey, entry: Entry, voter_sets: Sequence[VoterSet]) -> None:
        holders = self._holders.get((entry.base_offset, entry.term), set())
        if not any(len(holders.intersection(voters.keys)) >= voters.majority for voters in voter_sets):
            raise Violation(
                "commitment",
                f"{own} reports {_named(entry)} as committed, which only {', '.join(map(str, sorted(holders)))} ever "
                "had on "
                f"disk; the voters are {voter_sets[-1]}",
            )

    def _extend(self, entry: Entry) -> None:
        before = self.latest
        records: Sequence[MetadataRecord] = ()
        if entry.kind is EntryKind.DATA:
            (batch,) = decoded(entry.data)
            records = batch.records
            offset = entry.base_offset
            try:
                for record in records:
                    mark = self.marks_of(record)
                    if mark is not None:
                        self.writes.committed(mark, offset)
                    offset += 1
            except HistoryViolation as error:
                raise Violation("histories", str(error)) from None
        after, delta = before.apply_with_delta(records, entry.next_offset, entry.term)
        self.history.append(entry)
        self._ends.append(entry.next_offset)
        self.reference[entry.next_offset] = self.latest = after
        self.latest_delta = delta
        for check in self.on_image:
            check(before, after, delta, records)

    # -- images -------------------------------------------------------------------------------------------------------

    def image(self, who: str, image: MetadataImage, delta: MetadataDelta | None) -> None:
        """A node has published this image; ``delta``: its changes since the node's last image; None: compare the whole
        image."""
        known = self.reference.get(image.next_offset)
        if known is None:
            raise Violation(
                "state machines",
                f"{who} has an image of offset {image.next_offset}, where no committed batch ends "
                f"(the history ends at {self.committed})",
            )
        if image is known:
            return
        if delta is None:
            if image != known:
                raise Violation(
                    "state machines", f"{who}'s image at {image.next_offset} differs: {differs(image, known)}"
                )
            return
        if (
            image.cluster_id != known.cluster_id
            or len(image.topics) != len(known.topics)
            or len(image.brokers) != len(known.brokers)
            or any(image.brokers.get(each) != known.brokers.get(each) for each in delta.brokers)
            or any(image.topics.get(each) != known.topics.get(each) for each in delta.partitions)
            or any(each in image.topics for each in delta.removed_topics)
            or any(image.configs.get(each) != known.configs.get(each) for each in delta.configs)
        ):
            raise Violation("state machines", f"{who}'s image at {image.next_offset} differs: {differs(image, known)}")

    # -- clients ------------------------------------------------------------------------------------------------------

    def acknowledged(self, mark: Hashable, offset: int) -> None:
        try:
            self.writes.acknowledge(mark, offset)
        except HistoryViolation as error:
            raise Violation("histories", str(error)) from None
        self.reads.acknowledged(offset)

    def refused(self, mark: Hashable) -> None:
        try:
            self.writes.refuse(mark)
        except HistoryViolation as error:
            raise Violation("histories", str(error)) from None

    def read_served(self, must_see: int, saw: int, who: str) -> None:
        try:
            self.reads.served(must_see, saw, who)
        except HistoryViolation as error:
            raise Violation("reads", str(error)) from None

    def finish(self) -> None:
        try:
            self.writes.finish()
        except HistoryViolation as error:
            raise Violation("histories", str(error)) from None


@lru_cache(maxsize=256)
def decoded(data: bytes) -> tuple[MetadataBatch, ...]:
    """The decoded batches of these bytes; all followers share the result. (Controllers decode their own batches.)"""
    return tuple(decode_batches(data))


def differs(image: MetadataImage, known: MetadataImage) -> str:
    """The differences between two images, in a few words."""
    found = []
    for name in image.__struct_fields__:
        left, right = getattr(image, name), getattr(known, name)
        if left == right:
            continue
        if hasattr(left, "keys") and hasattr(right, "keys"):
            keys = [key for key in {**dict(left), **dict(right)} if left.get(key) != right.get(key)]
            found += [f"{name}[{key!r}]: {left.get(key)} and not {right.get(key)}" for key in keys[:2]]
        else:
            found.append(f"{name}: {left!r} and not {right!r}")
    return "; ".join(found)[:600] or "in what it says has changed"


def _named(entry: Entry) -> str:
    return f"{entry.kind.value} {entry.base_offset}..{entry.next_offset}/{entry.term}"
