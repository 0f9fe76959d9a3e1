"""The changes that the console can make. Before the console makes a change, it shows the equivalent command and the
effects: call ``from_form``, then ``review``, then ``apply``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from headrace import AsyncAdmin, ConfigResource, TopicPartition
from headrace_core.config.topic_keys import TOPIC
from headrace_core.errors import HeadraceError, InvalidArgumentError
from headrace_tools.cli.times import config_value
from headrace_tools.doctor.findings import some

from .cluster import REQUEST_S
from .display import config_words

#: Maximum characters of a field of a change.
FIELD_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Review:
    """The text that the user reads before the change. ``rows``: (name, value) pairs; ``means``: sentences about the
    effects of the change."""

    title: str
    rows: tuple[tuple[str, str], ...]
    means: tuple[str, ...]
    is_dangerous: bool = False


class Change(Protocol):
    """A change. ``kind`` is the name of the change in forms; ``fields`` returns the fields of its form."""

    kind: ClassVar[str]

    def fields(self) -> dict[str, str]: ...
    def words(self) -> tuple[str, ...]:
        """The words of the equivalent command, without the address of the cluster."""
        ...

    def page(self) -> tuple[str, dict[str, str]]:
        """The page to which the console returns, with its parameters."""
        ...

    async def review(self, admin: AsyncAdmin) -> Review:
        """Check the change without making it. Raises HeadraceError if the cluster would refuse the change."""
        ...

    async def apply(self, admin: AsyncAdmin) -> str:
        """Make the change; returns a sentence about what was done."""
        ...


@dataclass(frozen=True, slots=True)
class AlterTopicConfig:
    """Set a configuration key of a topic, or, if ``value`` is None, reset the key to the default."""

    kind: ClassVar[str] = "alter-topic-config"
    topic: str
    key: str
    value: str | None

    def fields(self) -> dict[str, str]:
        return {
            "topic": self.topic,
            "key": self.key,
            **({"reset": "1"} if self.value is None else {"value": self.value}),
        }

    def words(self) -> tuple[str, ...]:
        what = ("--delete", self.key) if self.value is None else ("--set", f"{self.key}={self.value}")
        return ("configs", "alter", "--topic", self.topic, *what)

    def page(self) -> tuple[str, dict[str, str]]:
        return "topic", {"name": self.topic}

    async def review(self, admin: AsyncAdmin) -> Review:
        resource = ConfigResource("topic", self.topic)
        entries = (await admin.describe_configs([resource], include_synonyms=True, timeout=REQUEST_S))[resource]
        entry = entries.get(self.key)
        if entry is None:
            raise InvalidArgumentError(
                f"topic {self.topic} has no key {self.key}; the page of the topic lists the keys"
            )
        await admin.alter_configs({resource: {self.key: self.value}}, validate_only=True, timeout=REQUEST_S)
        new = self.value
        if new is None:
            inherited = [each.value for each in entry.synonyms if each.source != "dynamic_topic"]
            new = inherited[0] if inherited else "the default"
        return Review(
            f"Change {self.key} of topic {self.topic}",
            (("now", _with_words(self.key, entry.value)), ("then", _with_words(self.key, new))),
            _means(self.key, entry.value, new),
            is_dangerous=_deletes_more(self.key, entry.value, new),
        )

    async def apply(self, admin: AsyncAdmin) -> str:
        resource = ConfigResource("topic", self.topic)
        await admin.alter_configs({resource: {self.key: self.value}}, timeout=REQUEST_S)
        if self.value is None:
            return f"{self.key} of topic {self.topic} has its default again."
        return f"{self.key} of topic {self.topic} is now {_with_words(self.key, self.value)}."


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """Abort the open transaction of a transactional id."""

    kind: ClassVar[str] = "abort-transaction"
    transactional_id: str

    def fields(self) -> dict[str, str]:
        return {"id": self.transactional_id}

    def words(self) -> tuple[str, ...]:
        return ("transactions", "abort", self.transactional_id)

    def page(self) -> tuple[str, dict[str, str]]:
        return "transaction", {"id": self.transactional_id}

    async def review(self, admin: AsyncAdmin) -> Review:
        found = (await admin.describe_transactions([self.transactional_id], timeout=REQUEST_S))[0]
        if found.state not in ("ongoing", "prepared"):
            raise InvalidArgumentError(
                f"{self.transactional_id} has no open transaction (its state is {found.state}): nothing to abort"
            )
        return Review(
            f"Abort the transaction of {self.transactional_id}",
            (("state", found.state), ("producer", f"{found.producer_id}, epoch {found.producer_epoch}"),
             ("partitions", some([f"{tp.topic}-{tp.partition}" for tp in found.partitions]) or "none")),
            (
                "Readers with read_committed never see the records of the transaction.",
                "These readers now wait for the records after the transaction, and can read them after the abort.",
                "The producer is fenced: its next commit fails, and it may begin another transaction.",
            ),
            is_dangerous=True,
        )  # fmt: skip

    async def apply(self, admin: AsyncAdmin) -> str:
        await admin.abort_transaction(self.transactional_id, timeout=3 * REQUEST_S)
        return f"The transaction of {self.transactional_id} is aborted."


@dataclass(frozen=True, slots=True)
class AbortHanging:
    """End a hanging transaction in one partition. ``producer_id``: the producer of the transaction at
    ``start_offset``."""

    kind: ClassVar[str] = "abort-hanging"
    topic: str
    partition: int
    producer_id: int
    start_offset: int

    def fields(self) -> dict[str, str]:
        return {
            "topic": self.topic,
            "partition": str(self.partition),
            "producer": str(self.producer_id),
            "offset": str(self.start_offset),
        }

    def words(self) -> tuple[str, ...]:
        where = ("-t", self.topic, "-p", str(self.partition))
        return ("transactions", "abort", *where, "--start-offset", str(self.start_offset))

    def page(self) -> tuple[str, dict[str, str]]:
        return "transactions", {}

    async def review(self, admin: AsyncAdmin) -> Review:
        where = TopicPartition(self.topic, self.partition)
        producers = (await admin.describe_producers([where], timeout=REQUEST_S))[where]
        if not any(
            (each.producer_id, each.transaction_start_offset) == (self.producer_id, self.start_offset)
            for each in producers
        ):
            raise InvalidArgumentError(
                f"no transaction of producer {self.producer_id} begins at offset {self.start_offset} of "
                f"{self.topic}-{self.partition} any more: it has ended"
            )
        return Review(
            f"End the hanging transaction in {self.topic}-{self.partition}",
            (("producer", str(self.producer_id)), ("first offset", f"{self.start_offset:,}")),
            (
                "No coordinator knows this transaction, so it would stay open forever.",
                "An abort marker ends it in this partition. Readers with read_committed then continue after it.",
            ),
            is_dangerous=True,
        )

    async def apply(self, admin: AsyncAdmin) -> str:
        await admin.abort_hanging_transaction(
            TopicPartition(self.topic, self.partition),
            producer_id=self.producer_id,
            start_offset=self.start_offset,
            timeout=2 * REQUEST_S,
        )
        return f"The hanging transaction in {self.topic}-{self.partition} is ended."


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Elect the preferred leaders of a topic, after a broker has returned."""

    kind: ClassVar[str] = "elect-preferred"
    topic: str
    partitions: tuple[int, ...] = field(default=())

    def fields(self) -> dict[str, str]:
        return {"topic": self.topic, "partitions": ",".join(map(str, self.partitions))}

    def words(self) -> tuple[str, ...]:
        return ("partitions", "elect", *(f"{self.topic}-{partition}" for partition in self.partitions))

    def page(self) -> tuple[str, dict[str, str]]:
        return "topic", {"name": self.topic}

    async def review(self, admin: AsyncAdmin) -> Review:
        topic = (await admin.describe_topics([self.topic], timeout=REQUEST_S))[0]
        by_id = {part.partition: part for part in topic.partitions}
        unknown = [each for each in self.partitions if each not in by_id]
        if unknown:
            raise InvalidArgumentError(f"topic {self.topic} has no partition {unknown[0]}")
        rows = tuple(
            (f"{self.topic}-{each}", f"leader {by_id[each].leader}, preferred {by_id[each].replicas[0]}")
            for each in self.partitions
        )
        return Review(
            f"Elect the preferred leaders of topic {self.topic}",
            rows,
            ("The first replica of each partition leads again, if it is in sync. No record is lost.",),
        )

    async def apply(self, admin: AsyncAdmin) -> str:
        wanted = [TopicPartition(self.topic, partition) for partition in self.partitions]
        results = await admin.elect_leaders("preferred", wanted, timeout=2 * REQUEST_S)
        failed = [error for error in results.values() if error is not None and error.code != "ELECTION_NOT_NEEDED"]
        if failed:
            raise failed[0]
        return f"The preferred leaders of topic {self.topic} lead."


def from_form(form: Mapping[str, str]) -> Change:
    """Parse a submitted form into a change. Raises InvalidArgumentError, which names the invalid field."""
    kind = form.get("kind", "")
    if kind == AlterTopicConfig.kind:
        topic, key = _text(form, "topic"), _text(form, "key")
        if key not in TOPIC.keys:
            raise InvalidArgumentError(
                f"key: {key[:100]!r} is not a key of a topic; the page of the topic lists the keys"
            )
        return AlterTopicConfig(topic, key, None if form.get("reset") else _value(form, key))
    if kind == AbortTransaction.kind:
        return AbortTransaction(_text(form, "id"))
    if kind == AbortHanging.kind:
        return AbortHanging(
            _text(form, "topic"), _whole(form, "partition"), _whole(form, "producer"), _whole(form, "offset")
        )
    if kind == ElectPreferred.kind:
        texts = [each for each in _text(form, "partitions").split(",") if each]
        if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in texts):
            raise InvalidArgumentError("partitions: write partition numbers, such as 0,3")
        return ElectPreferred(_text(form, "topic"), tuple(map(int, texts)))
    raise InvalidArgumentError(f"kind: {kind[:100]!r} is not a change that the console can make")


def refusal(error: HeadraceError) -> str:
    """An error of the cluster as one line."""
    return f"{error.message} [{error.code}]"


def _text(form: Mapping[str, str], name: str) -> str:
    found = form.get(name, "").strip()
    if not found:
        raise InvalidArgumentError(f"{name} is empty: fill in the field")
    if len(found) > FIELD_MAX:
        raise InvalidArgumentError(f"{name} has {len(found):,} characters; at most {FIELD_MAX:,} are allowed")
    return found


def _value(form: Mapping[str, str], key: str) -> str:
    return config_value(key, _text(form, "value"))


def _whole(form: Mapping[str, str], name: str) -> int:
    text = _text(form, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgumentError(f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


def _with_words(key: str, value: str) -> str:
    words = config_words(key, value)
    return f"{value} ({words})" if words else value


def _means(key: str, now: str, then: str) -> tuple[str, ...]:
    if key in ("retention.ms", "retention.bytes"):
        what = "older than that" if key == "retention.ms" else "beyond that size of a partition"
        if _deletes_more(key, now, then):
            return (f"Brokers delete records {what}, in whole segments. Deleted records cannot be restored.",)
        return ("Records are kept longer. Records that are already deleted cannot be restored.",)
    if key == "min.insync.replicas":
        return ("Writes with acks=all need this number of in-sync copies.",)
    return ("The brokers use the value at once; clients need no restart.",)


def _deletes_more(key: str, now: str, then: str) -> bool:
    if key not in ("retention.ms", "retention.bytes"):
        return False
    try:
        old, new = int(now), int(then)
    except ValueError:
        return False
    return new != -1 and (old == -1 or new < old)
