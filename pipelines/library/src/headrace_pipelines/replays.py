"""Replay: send the records of a dead-letter topic to their source topics again, each once.

    replayed = replay("payments.dead-letters", bootstrap_servers="127.0.0.1:9095")
    print(replayed.sent, replayed.exhausted)

A replayed record has the key, value, headers, timestamp and partition of the original, and the header
``headrace.dead-letter.tries`` with the number of its replays. If the pipeline refuses a replayed record again, the new
dead letter keeps the number of replays. A record is therefore replayed at most ``tries_max`` times.

**Each dead letter is replayed once.** The records and the progress of the group ``<topic>.replay`` are one transaction.
After a crash the next replay continues where the last transaction ended. If a second replay of a topic starts, the
second replay fences the first replay. A source position may occur twice in the dead-letter topic, because an
at-least-once sink has repeated a batch. A position that occurs twice is replayed once: a replay reads the headers of
the whole topic, and remembers the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace import Consumer, Producer, Record, TopicPartition
from headrace.errors import UnknownTopicOrPartitionError
from headrace_core.errors import HeadraceError, InvalidArgumentError

from .access import Access
from .dead_letters import PREFIX
from .errors import ReplayError
from .topics import records_in_topic

#: Largest request of a replay; brokers accept requests of up to 16 MiB.
REQUEST_BYTES = 16_000_000
_TRIES = PREFIX + "tries"


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

    Raises ReplayError, which names the source position, if a source topic does not exist or refuses a record;
    InvalidArgumentError; and the client's errors. Replayed records stay committed after an error; call ``replay`` again
    to continue.
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
    ):
        producer.init_transactions()  # ends the transaction of a replay that died, so that its offsets are not pending
        begun = _progress(consumer, topic)
        seen: set[tuple[str, int, int, int]] = set()
        for records in records_in_topic(consumer, topic):
            letters = [(record, DeadLetter.of(record)) for record in records]
            wanted: list[DeadLetter] = []
            handled = Replayed()
            for record, letter in letters:
                is_old = record.offset < begun.get(TopicPartition(topic, record.partition), 0)
                is_new_position = letter is not None and letter.identity not in seen
                if letter is not None:
                    seen.add(letter.identity)
                if is_old:
                    continue
                if letter is None:
                    handled.foreign += 1
                elif not is_new_position:
                    handled.repeated += 1
                elif letter.tries >= tries_max:
                    handled.exhausted += 1
                elif only is not None and not only(letter):
                    handled.skipped += 1
                else:
                    wanted.append(letter)
                    handled.sent += 1
            ends = {TopicPartition(topic, record.partition): record.offset + 1 for record in records}
            progress = {each: end for each, end in ends.items() if end > begun.get(each, 0)}
            if progress:
                _send(producer, consumer, wanted, progress)
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


def _send(
    producer: Producer, consumer: Consumer, letters: list[DeadLetter], progress: dict[TopicPartition, int]
) -> None:
    """Send the records and the group's progress in one transaction."""
    counts: dict[str, int] = {}
    current: DeadLetter | None = None
    try:
        with producer.transaction():
            futures = []
            for letter in letters:
                current = letter
                if letter.topic not in counts:
                    counts[letter.topic] = len(consumer.partitions_for(letter.topic))
                partition = letter.partition if letter.partition < counts[letter.topic] else None
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
        if current is None:
            raise
        where = f"{current.topic}-{current.partition} at offset {current.offset}"
        if isinstance(error, UnknownTopicOrPartitionError):
            raise ReplayError(
                f"cannot replay {where}: the topic {current.topic!r} does not exist; create it, or leave its dead "
                "letters out with only="
            ) from error
        raise ReplayError(
            f"cannot replay {where}: {error.message} [{error.code}]; correct the topic's configuration, or leave the "
            "record out with only="
        ) from error
