"""Random histories of every kind of metadata record, made from the records' types: a new kind or field is included
automatically. Records that an image refuses (they refer to missing things) are left out."""

from __future__ import annotations

import enum
import random
import types
import typing

import msgspec

from headrace_core.errors import CorruptLogError
from headrace_core.metadata import EMPTY_IMAGE, ClusterRecord, ConfigRecord, MetadataImage, MetadataRecord, TopicRecord
from headrace_core.metadata.records import METADATA_VERSION, METADATA_VERSION_FEATURE, FeatureLevelRecord

RECORD_CLASSES: tuple[type[msgspec.Struct], ...] = typing.get_args(MetadataRecord)
LEVEL = METADATA_VERSION
_IDS = [bytes([number]) * 16 for number in range(1, 5)]
#: Only few ids and names, so that records often name existing objects.
_TEXTS = ["a", "b", "c", "metadata.version", "log.flush"]


def any_record(rng: random.Random, kind: type[msgspec.Struct]) -> MetadataRecord:
    return typing.cast("MetadataRecord", _struct(rng, kind))


def any_history(rng: random.Random, count: int) -> tuple[list[MetadataRecord], MetadataImage]:
    """Records that can follow each other, and the image that they result in."""
    records: list[MetadataRecord] = [ClusterRecord("cluster", LEVEL)]
    image = EMPTY_IMAGE.apply(records, 1, 1)
    while len(records) < count:
        record = any_record(rng, rng.choice(RECORD_CLASSES))
        if isinstance(record, ClusterRecord):  # existing objects need the level
            record = ClusterRecord("cluster", LEVEL, record.flush_weakened)
        if isinstance(record, FeatureLevelRecord):
            record = FeatureLevelRecord(METADATA_VERSION_FEATURE, LEVEL)
        if isinstance(record, TopicRecord) and record.topic_id in image.topics:
            continue  # ids are never given twice
        if (
            isinstance(record, ConfigRecord)
            and record.resource_type == 1
            and record.resource_name not in image.topic_ids
        ):
            continue  # a topic comes before its settings
        try:
            image = image.apply([record], len(records) + 1, 1 + len(records) // 50)
        except CorruptLogError:
            continue
        records.append(record)
    return records, image


def _struct(rng: random.Random, kind: type[msgspec.Struct]) -> msgspec.Struct:
    hints = typing.get_type_hints(kind)
    values = {name: _value(rng, name, hints[name]) for name in kind.__struct_fields__}
    if values.get("directories"):  # one for each replica, if directories are set
        values["directories"] = tuple(rng.choice(_IDS) for _ in values.get("replicas") or ())
    return kind(**values)


def _value(rng: random.Random, name: str, hint: typing.Any) -> typing.Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        choices = typing.get_args(hint)
        return _value(rng, name, rng.choice(choices))
    if hint is type(None):
        return None
    if origin is tuple:
        item, *others = typing.get_args(hint)
        if others != [Ellipsis]:
            return tuple(_value(rng, name, each) for each in (item, *others))
        return tuple(dict.fromkeys(_value(rng, name, item) for _ in range(rng.randrange(4))))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(rng, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return rng.choice(list(hint))
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return rng.randint(1, 2) if name == "resource_type" else rng.randrange(3)
    if hint is float:
        return float(rng.randrange(1, 4))
    if hint is str:
        return rng.choice(_TEXTS)
    assert hint is bytes, f"{name}: {hint} is new: say here how to make one"
    return rng.choice(_IDS)
