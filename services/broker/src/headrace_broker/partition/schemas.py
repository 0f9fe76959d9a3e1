"""Decide whether the schema registry has the schema ids of an append (``value.schema.validation``). Pure.

A topic's ``LogConfig`` says under which subjects the schemas of its keys and values must be registered. ``SchemaCheck``
has the ids of one append, and ``KnownSchemas`` has the registry's answers so far. ``judge`` accepts or refuses the
append, or names the ids that the registry must be asked about.

    the key or value                                       the append
    null                                                   passes
    does not begin with a byte 0 and a schema id           is refused
    the registry has the id under one of the subjects      passes
    the registry has the id under other subjects, or not   is refused, until the answer is too old
    not known yet                                          waits for the registry's answer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from headrace_core.errors import InvalidRecordError
from headrace_core.log.appending import FAULTS_MAX
from headrace_core.log.config import LogConfig, SubjectStrategy
from headrace_core.records import NO_SCHEMA, BatchSchemas, SchemaIds
from headrace_core.types import TopicPartition

T = TypeVar("T")

_NO_SCHEMA = "does not begin with a magic byte 0 and a schema id (Confluent's wire format)"


class Subjects(NamedTuple):
    """The subjects under which a topic's keys or values may have their schemas."""

    name: str
    is_prefix: bool = False  #: Whether all subjects that begin with ``name`` are accepted.

    def has(self, subject: str) -> bool:
        return subject.startswith(self.name) if self.is_prefix else subject == self.name

    def __str__(self) -> str:
        if not self.is_prefix:
            return f'the subject "{self.name}"'
        return f'a subject that begins with "{self.name}"' if self.name else "a subject"


class Need(NamedTuple):
    """A schema id and the subjects under which it must be registered."""

    schema_id: int
    subjects: Subjects


def subjects_of(strategy: SubjectStrategy, topic: str, side: str) -> Subjects:
    """The subjects for the keys or the values (``side``) of a topic. A record type has its name inside the schema, and
    brokers do not read schemas. Therefore RecordNameStrategy accepts every subject, and TopicRecordNameStrategy accepts
    every subject of the topic."""
    if strategy is SubjectStrategy.TOPIC:
        return Subjects(f"{topic}-{side}")
    return Subjects(f"{topic}-" if strategy is SubjectStrategy.TOPIC_RECORD else "", is_prefix=True)


class SchemaCheck:
    """The schema check of one append. ``headrace_core.log.appending.validate`` fills ``ids``."""

    __slots__ = ("accepted", "asked_ms", "ids", "keys", "values")

    def __init__(self, topic: str, config: LogConfig) -> None:
        keys, values = config.key_schemas, config.value_schemas
        self.ids = SchemaIds(of_keys=keys is not None, of_values=values is not None)
        self.keys = None if keys is None else subjects_of(keys, topic, "key")
        self.values = None if values is None else subjects_of(values, topic, "value")
        #: Time at which the broker first asked the registry about the append; None before that time. Every answer after
        #: ``asked_ms`` is valid for the append, even if the answer is already too old for other appends.
        self.asked_ms: float | None = None
        #: The schema ids (with subjects) that the registry has accepted since the broker first asked about the append.
        #: An append may have more ids than the cache.
        self.accepted: set[Need] = set()

    @classmethod
    def of(cls, topic: str, config: LogConfig) -> SchemaCheck | None:
        """A new check; None for a topic without validation."""
        if config.value_schemas is None and config.key_schemas is None:
            return None
        return cls(topic, config)


class KnownSchemas:
    """The registry's answers. An id that the registry has under a subject stays known: a registry never gives
    an id to another schema. An answer that the registry lacks an id is valid for ``missing_ttl_ms``. Missing ids have a
    separate part of the cache, so that they cannot displace known ids."""

    __slots__ = ("_accepted", "_missing", "missing_ttl_ms", "size_max")

    def __init__(self, size_max: int, missing_ttl_ms: int) -> None:
        self.size_max = size_max
        self.missing_ttl_ms = missing_ttl_ms
        self._accepted: dict[Need, None] = {}  # least recently used first
        self._missing: dict[Need, tuple[str, float]] = {}  # the reason, and the time at which it expires; oldest first

    def __len__(self) -> int:
        return len(self._accepted) + len(self._missing)

    def fault(self, need: Need, since_ms: float) -> str | None:
        """The reason why the schema id is refused; empty if the id is accepted; None if the id is unknown. An answer of
        the registry is used if the answer was not too old at ``since_ms``."""
        if need in self._accepted:
            if len(self._accepted) > 1:
                del self._accepted[need]
                self._accepted[need] = None
            return ""
        missing = self._missing.get(need)
        if missing is None:
            return None
        reason, expires_ms = missing
        if since_ms <= expires_ms:
            return reason
        del self._missing[need]
        return None

    def answered(self, need: Need, subjects: Iterable[str] | None, now_ms: float) -> None:
        """Take the registry's answer: the subjects of the id, or None if the registry lacks the id."""
        self._accepted.pop(need, None)
        self._missing.pop(need, None)
        if subjects is not None and any(map(need.subjects.has, subjects)):
            self._accepted[need] = None
            _trim(self._accepted, self.size_max)
            return
        if subjects is None:
            reason = f"has schema id {need.schema_id}, which the schema registry does not have"
        else:
            reason = f"has schema id {need.schema_id}, which is not registered under {need.subjects}"
        self._missing[need] = reason, now_ms + self.missing_ttl_ms
        _trim(self._missing, self.size_max)

    def resize(self, size_max: int, missing_ttl_ms: int) -> None:
        self.size_max, self.missing_ttl_ms = size_max, missing_ttl_ms
        _trim(self._accepted, size_max)
        _trim(self._missing, size_max)


def judge(check: SchemaCheck, known: KnownSchemas, partition: TopicPartition, now_ms: float) -> list[Need]:
    """The unknown ids of an append, in the order of their records; empty if the append is accepted. Raises
    InvalidRecordError with the refused records of the first batch that has refused records."""
    unknown: dict[Need, None] = {}
    for batch in check.ids.batches:
        faults: list[tuple[int, str]] = []
        for side, subjects, schema_id, indexes in _sides(check, batch):
            reason = _NO_SCHEMA
            if schema_id != NO_SCHEMA:
                need = Need(schema_id, subjects)
                if need in check.accepted:
                    continue
                fault = known.fault(need, now_ms if check.asked_ms is None else check.asked_ms)
                if fault is None:
                    unknown[need] = None
                elif not fault and check.asked_ms is not None:
                    check.accepted.add(need)
                if not fault:
                    continue
                reason = fault
            faults += [(index, f"the {side} {reason}") for index in indexes]
        if faults:
            raise _refused(faults, partition)
    return list(unknown)


def _sides(check: SchemaCheck, batch: BatchSchemas) -> Iterator[tuple[str, Subjects, int, list[int]]]:
    for side, subjects, ids in (("key", check.keys, batch.keys), ("value", check.values, batch.values)):
        if subjects is not None:
            for schema_id, indexes in ids.items():
                yield side, subjects, schema_id, indexes


def _refused(faults: list[tuple[int, str]], partition: TopicPartition) -> InvalidRecordError:
    faults.sort()
    index, reason = faults[0]
    error = InvalidRecordError(
        f"{partition}: record {index} of a batch: {reason}; the topic has schema validation: register the schema under "
        "the topic's subject and use its serializer, or send the record to another topic"
    )
    error.faults = tuple(faults[:FAULTS_MAX])
    return error


def _trim(cache: dict[Need, T], size_max: int) -> None:  # the oldest entries go
    while len(cache) > size_max:
        del cache[next(iter(cache))]
