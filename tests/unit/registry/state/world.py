"""A registry without a network: decisions, a topic that is a list, and its compaction."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from headrace_registry.compat import Level
from headrace_registry.schemas import Reference, Schema, SchemaType
from headrace_registry.state import Config, Deciding, Decision, Image, Mode, Rules, Submission

T = TypeVar("T")

Topic = list[tuple[bytes, bytes | None]]


def avro(schema: object, *references: tuple[str, str, int]) -> Schema:
    """An Avro schema of a value or a text. A reference is (name, subject, version)."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Schema(SchemaType.AVRO, text, tuple(Reference(*each) for each in references))


def record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    """An Avro record; a field is (name, type) or (name, type, default)."""
    keys = ("name", "type", "default")
    return {"type": "record", "name": name, "fields": [dict(zip(keys, each, strict=False)) for each in fields]}


class Writer:
    """One writer: each method decides on the image, appends to the topic, and applies."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.topic: Topic = []
        self.image = Image()
        self.deciding = Deciding(rules or Rules())

    def carry_out(self, decision: Decision[T]) -> T:
        for key, value in decision.records:
            self.topic.append((key, value))
            self.image.apply(key, value, len(self.topic) - 1)
        return decision.answer

    def register(
        self,
        subject: str,
        schema: Schema,
        *,
        version: int = 0,
        id: int = -1,  # noqa: A002
        normalize: bool = False,
    ) -> int:
        submitted = Submission(subject, schema, version, id)
        return self.carry_out(self.deciding.register(self.image, submitted, normalize=normalize))

    def delete_version(self, subject: str, number: int, *, permanent: bool = False) -> int:
        decision = self.deciding.delete_version(self.image, subject, number, str(number), permanent=permanent)
        return self.carry_out(decision)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        return self.carry_out(self.deciding.delete_subject(self.image, subject, permanent=permanent))

    def set_level(self, subject: str | None, level: Level) -> None:
        self.carry_out(self.deciding.set_config(self.image, subject, Config(level=level)))

    def set_mode(self, subject: str | None, mode: Mode, *, force: bool = False) -> None:
        self.carry_out(self.deciding.set_mode(self.image, subject, mode, force=force))

    def live(self, subject: str) -> list[int]:
        return [each.number for each in self.image.versions(subject) if not each.is_deleted]


def replayed(topic: Topic) -> Image:
    image = Image()
    for offset, (key, value) in enumerate(topic):
        image.apply(key, value, offset)
    return image


def compacted(topic: Topic) -> Topic:
    """What compaction may leave: the last record of each key, in order, and no null value."""
    last = {key: offset for offset, (key, _) in enumerate(topic)}
    return [(key, value) for offset, (key, value) in enumerate(topic) if last[key] == offset and value is not None]


def state(image: Image) -> dict[str, Any]:
    """Everything that a client can see of an image."""
    subjects = list(image.subjects())
    versions = [each for subject in subjects for each in image.versions(subject)]
    ids = sorted({each.stored.id for each in versions})
    return {
        "versions": versions,
        "ids": {each: image.id_of(stored.schema) for each in ids if (stored := image.schema(each)) is not None},
        "uses": {each: image.uses(each, deleted=True) for each in ids},
        "referenced": {
            (each.subject, each.number): image.referenced_by(each.subject, each.number) for each in versions
        },
        "configs": {each: image.config(each) for each in (None, *subjects)},
        "modes": {each: image.mode(each) for each in (None, *subjects)},
        "schemas": image.schema_count,
        "max_id": image.max_id,
    }
