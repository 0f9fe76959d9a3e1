"""Replay: send the records of a dead-letter topic to their source topics again, each once.

    replayed = replay("payments.dead-letters", bootstrap_servers="127.0.0.1:9095")
    print(replayed.sent, replayed.exhausted)

A replayed record has the key, value, headers, timestamp and partition of the original, and the header
``headrace.dead-letter.tries`` with the number of its replays. If the pipeline refuses a replayed record again, the new
dead letter keeps the number of replays. A record is therefore replayed at most ``tries_max`` times.

**Each dead letter is replayed once.** The records and the progress of the group ``<topic>.replay`` are one transaction.
After a crash the next replay continues where the last transaction ended. If a second replay of a topic starts, the
second replay fences the first replay. A source position may occur twice in the dead-letter topic, because an
at-least-once sink has repeated a batch. A position that occurs twice is replayed once, although the two dead letters
may be in different partitions. A replay first reads the dead letters that earlier replays have handled, and remembers
their positions. Then it handles all other dead letters.

**Retention does not delete a replayed record before the pipeline reads it.** The record keeps its timestamp, and
``retention.ms`` of the source topic counts from this timestamp. A replay refuses a record that would be too old.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace import Admin, ConfigResource, Consumer, Producer, Record, TopicPartition
from headrace.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from headrace_core.errors import HeadraceError, InvalidArgumentError

from .access import Access
from .dead_letters import PREFIX
from .errors import ReplayError
from .topics import records_in_topic

#: Largest request of a replay; brokers accept requests of up to 16 MiB.
REQUEST_BYTES = 16_000_000
#: Milliseconds that a pipeline may need to read a replayed record: a replay refuses a record that ``retention.ms``
#: would delete earlier. For a short ``retention.ms`` the limit is half of it, so that a new record can be replayed.
READ_WITHIN_MS = 600_000
_TRIES = PREFIX + "tries"

logger = logging.getLogger(__name__)


def is_replayed(record: Record) -> bool:
    """Whether a replay has sent the record."""
    return any(name == _TRIES for name, _ in record.headers)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic. ``topic``, ``partition``, ``offset`` and ``timestamp_ms`` are the source
    position. ``headers`` are the headers of the original record. ``tries`` is the record's number of replays.
    ``written_ms`` is the time of the dead letter."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    tries: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    written_ms: int

    @property
    def position(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """The source position together with the timestamp, because a topic that is created again has the same positions
        again."""
        return *self.position, self.timestamp_ms

    @classmethod
    def of(cls, record: Record) -> DeadLetter | None:
        """The dead letter in a record; None if the record lacks the headers of a dead letter."""
        own = {name.removeprefix(PREFIX): value for name, value in record.headers if name.startswith(PREFIX)}
        kept = tuple((name, value) for name, value in record.headers if not name.startswith(PREFIX))
        try:
            text = {name: (value or b"").decode() for name, value in own.items()}
            return cls(
                topic=text["topic"],
                partition=int(text["partition"]),
                offset=int(text["offset"]),
                timestamp_ms=int(text["timestamp"]),
                reason=text["reason"],
                tries=int(text["tries"]),
                key=record.key,
                value=record.value,
                headers=kept,
                written_ms=record.timestamp_ms,
            )
        except (KeyError, ValueError):
            return None


@dataclass(slots=True)
class Replayed:
    """The result of a replay: what happened to the dead letters that no earlier replay has handled. The fields count
    records:

    * ``sent``: replayed;
    * ``repeated``: an earlier dead letter of the topic has the source position of the record;
    * ``exhausted``: replayed ``tries_max`` times already;
    * ``skipped``: refused by ``only``;
    * ``foreign``: records that are not dead letters.
    """

    sent: int = 0
    repeated: int = 0
    exhausted: int = 0
    skipped: int = 0
    foreign: int = 0


def replay(
    topic: str,
    *,
    bootstrap_servers: str,
    keys: Mapping[str, str] | None = None,
    tries_max: int = 3,
    only: Callable[[DeadLetter], bool] | None = None,
) -> Replayed:
    """Replay the dead letters that are in ``topic`` now, and return what happened to them.

    ``keys``: client keys for TLS and login. ``only`` chooses dead letters, for instance by reason; ``replay`` skips all
    other dead letters, and later replays do not return to the skipped dead letters. To replay a topic from its start
    again, delete the group ``<topic>.replay``.

    Raises ReplayError, which names the source position, if a source topic does not exist, refuses a record, or would
    delete a record because of its age; InvalidArgumentError; and the client's errors. Replayed records stay committed
    after an error; call ``replay`` again to continue.
    """
    if tries_max < 1:
        raise InvalidArgumentError(f"tries_max={tries_max}: must be 1 or more")
    group = f"{topic}.replay"
    done = Replayed()
    access = Access(bootstrap_servers, keys or {})
    with (
        Consumer(
            access.consumer(),
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
        Producer(access.producer(), transactional_id=group, max_request_size=REQUEST_BYTES) as producer,
        Admin(access.admin()) as admin,
    ):
        sources = _Sources(consumer, admin)
        producer.init_transactions()  # ends the transaction of a replay that died, so that its offsets are not pending
        begun = _progress(consumer, topic)
        seen = {
            letter.identity
            for records in records_in_topic(consumer, topic, before=begun)
            for letter in map(DeadLetter.of, records)
            if letter is not None
        }
        for records in records_in_topic(consumer, topic, since=begun):
            wanted: list[DeadLetter] = []
            handled = Replayed()
            for letter in map(DeadLetter.of, records):
                if letter is None:
                    handled.foreign += 1
                elif letter.identity in seen:
                    handled.repeated += 1
                elif letter.tries >= tries_max:
                    handled.exhausted += 1
                elif only is not None and not only(letter):
                    handled.skipped += 1
                else:
                    wanted.append(letter)
                    handled.sent += 1
                if letter is not None:
                    seen.add(letter.identity)
            ends = {TopicPartition(topic, record.partition): record.offset + 1 for record in records}
            _send(producer, consumer, sources, wanted, ends)
            for name in Replayed.__slots__:
                setattr(done, name, getattr(done, name) + getattr(handled, name))
    return done


def waiting_before(topic: str, time_ms: int, *, bootstrap_servers: str, keys: Mapping[str, str] | None = None) -> int:
    """The number of dead letters that were written before ``time_ms`` and that no replay has handled."""
    found = 0
    with Consumer(
        Access(bootstrap_servers, keys or {}).consumer(),
        group_id=f"{topic}.replay",
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        begun = _progress(consumer, topic)
        for records in records_in_topic(consumer, topic):
            found += sum(
                record.timestamp_ms < time_ms
                and record.offset >= begun.get(TopicPartition(topic, record.partition), 0)
                and DeadLetter.of(record) is not None
                for record in records
            )
    return found


def _progress(consumer: Consumer, topic: str) -> dict[TopicPartition, int]:
    """The committed offsets of the group ``<topic>.replay``."""
    committed = consumer.committed([TopicPartition(topic, number) for number in consumer.partitions_for(topic)])
    return {each: at.offset for each, at in committed.items() if at is not None}


class _Sources:
    """The source topics of a replay."""

    def __init__(self, consumer: Consumer, admin: Admin) -> None:
        self._consumer, self._admin = consumer, admin
        self._partitions: dict[str, int] = {}
        self._retention_ms: dict[str, int] = {}

    def partitions(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len(self._consumer.partitions_for(topic))
        return self._partitions[topic]

    def check_age(self, letter: DeadLetter, now_ms: int) -> None:
        """Raise ReplayError if retention would delete the record before a pipeline reads the record."""
        kept_ms = self._retention_of(letter.topic)
        if 0 <= kept_ms < now_ms - letter.timestamp_ms + min(READ_WITHIN_MS, kept_ms // 2):
            age_s = (now_ms - letter.timestamp_ms) // 1_000
            raise ReplayError(
                f"cannot replay {_position(letter)}: the record is {age_s} s old, and retention.ms={kept_ms} of the "
                "topic would delete the record before the pipeline reads it; set a larger retention.ms until the "
                "pipeline has read the record, or leave the record out with only="
            )

    def _retention_of(self, topic: str) -> int:
        """``retention.ms`` of a topic; -1 if the topic deletes no old records, or if its configuration may not be
        read."""
        if topic not in self._retention_ms:
            resource = ConfigResource("topic", topic)
            try:
                config = self._admin.describe_configs([resource])[resource]
            except TopicAuthorizationFailedError as error:
                logger.warning(
                    "cannot read retention.ms of the topic %r, so the age of replayed records is not checked: %s",
                    topic,
                    error,
                )
                self._retention_ms[topic] = -1
            else:
                deletes = "delete" in str(config["cleanup.policy"].value)
                by_append = config["message.timestamp.type"].value == "LogAppendTime"
                self._retention_ms[topic] = int(config["retention.ms"].value) if deletes and not by_append else -1
        return self._retention_ms[topic]


def _position(letter: DeadLetter) -> str:
    return f"{letter.topic}-{letter.partition} at offset {letter.offset}"


def _send(
    producer: Producer,
    consumer: Consumer,
    sources: _Sources,
    letters: list[DeadLetter],
    progress: dict[TopicPartition, int],
) -> None:
    """Send the records and the group's progress in one transaction."""
    now_ms = int(time.time() * 1_000)
    current: DeadLetter | None = None
    try:
        with producer.transaction():
            futures = []
            for letter in letters:
                current = letter
                partition = letter.partition if letter.partition < sources.partitions(letter.topic) else None
                sources.check_age(letter, now_ms)
                future = producer.send(
                    letter.topic,
                    value=letter.value,
                    key=letter.key,
                    headers=[*letter.headers, (_TRIES, str(letter.tries + 1).encode())],
                    partition=partition,
                    timestamp_ms=letter.timestamp_ms,
                )
                futures.append((letter, future))
            producer.flush()
            for each, future in futures:
                current = each
                future.result(timeout=60)
            current = None
            producer.send_offsets(progress, group=consumer.group_metadata())
    except HeadraceError as error:
        if current is None or isinstance(error, ReplayError):
            raise
        where = _position(current)
        if isinstance(error, UnknownTopicOrPartitionError):
            raise ReplayError(
                f"cannot replay {where}: the topic {current.topic!r} does not exist; create it, or leave its dead "
                "letters out with only="
            ) from error
        raise ReplayError(
            f"cannot replay {where}: {error.message} [{error.code}]; correct the topic's configuration, or leave the "
            "record out with only="
        ) from error
