"""Present the cluster's state as directories and files, in the layout of kafka-metadata-shell.

    /image/cluster/brokers/1         /image/topics/byName/orders/{name,id,0,1,...}    /image/features/metadataVersion
    /image/cluster/controllers/1     /image/topics/byId/JEXY6aqzQY-32P5TStzaFg/...    /image/producerIds/nextProducerId
    /image/cluster/id                /image/configs/TOPIC:orders/retention.ms         /image/provenance
    /local/quorum                    /local/files

State that Kafka does not have (shards, queued reassignments ...) is shown under Headrace's names. ``/topics/orders/0``
and ``/brokers/1`` are short forms of paths under ``/image``. A directory object is created only when a path needs it,
so the number of partitions does not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import InvalidArgumentError
from ..metadata import MetadataImage, TopicImage
from ..node.ids import id_to_text
from .plain import key_text, plain
from .state import LoadedState


class File:
    """A leaf of the tree; its value is what ``cat`` prints, as dicts, lists, text and numbers."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Directory:
    """A directory of the tree. ``names()`` lists its entries in order; ``child`` creates an entry on request."""

    def __init__(self, names: Callable[[], Iterable[str]], child: Callable[[str], Node | None]) -> None:
        self._names, self._child = names, child

    def names(self) -> list[str]:
        return list(self._names())

    def child(self, name: str) -> Node | None:
        """Return the child with the given name, or None."""
        return self._child(name)

    @classmethod
    def of(cls, children: Mapping[str, Callable[[], Node]]) -> Directory:
        return cls(lambda: children, lambda name: children[name]() if name in children else None)

    @classmethod
    def of_table(cls, table: Mapping[Any, Any]) -> Directory:
        """Make a directory with a file for each entry of a table."""
        keys = {key_text(key): key for key in table}
        return cls(lambda: keys, lambda name: File(plain(table[keys[name]])) if name in keys else None)


Node = File | Directory

#: Maps the first name of each short path to the full path under /image.
_SHORT = {"brokers": ("cluster", "brokers"), "controllers": ("cluster", "controllers")}
_TOPIC_VIEWS = ("byName", "byId")
#: Maximum number of names that an error lists.
_SHOWN_MAX = 20


def tree(state: LoadedState) -> Directory:
    """Build the root directory."""
    return Directory.of({"image": lambda: _image(state.image), "local": lambda: _local(state)})


def resolve(root: Directory, path: str) -> Node:
    """Return the file or directory at ``path``. InvalidArgumentError names the first missing part of the path, and
    lists the existing names."""
    here: Node = root
    walked = ""
    for name in _long(path):
        if isinstance(here, File):
            raise InvalidArgumentError(f"{walked} is not a directory, so it has no {name}")
        found = here.child(name)
        if found is None:
            raise InvalidArgumentError(f"{walked or '/'}: no {name} in this directory{_some(here.names())}")
        here, walked = found, f"{walked}/{name}"
    return here


def _long(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if not parts or parts[0] in ("image", "local"):
        return parts
    if parts[0] == "topics" and parts[1:] and parts[1] not in _TOPIC_VIEWS:
        parts.insert(1, "byName")
    return ["image", *_SHORT.get(parts[0], (parts[0],)), *parts[1:]]


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_MAX])
    more = f", and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"; there is {shown}{more}" if names else "; it is empty"


def _image(image: MetadataImage) -> Directory:
    ledger = {each.name: getattr(image.ledger, each.name) for each in dataclasses.fields(image.ledger)}
    controllers, producer_id = ledger.pop("controllers"), ledger.pop("next_producer_id")
    children: dict[str, Callable[[], Node]] = {
        "cluster": lambda: Directory.of(
            {
                "id": lambda: File(image.cluster_id),
                "brokers": lambda: Directory.of_table(dict(sorted(image.brokers.items()))),
                "controllers": lambda: Directory.of_table(dict(sorted(controllers.items()))),
            }
        ),
        "configs": lambda: _configs(image),
        "features": lambda: Directory.of({"metadataVersion": lambda: File(image.metadata_version)}),
        "producerIds": lambda: Directory.of({"nextProducerId": lambda: File(producer_id)}),
        "provenance": lambda: File({"next_offset": image.next_offset, "term": image.epoch}),
        "topics": lambda: Directory.of(
            {
                "byName": lambda: Directory(lambda: sorted(image.topic_ids), lambda name: _topic(image.topic(name))),
                "byId": lambda: _topics_by_id(image),
            }
        ),
    }
    known = {"next_offset", "epoch", "cluster_id", "metadata_version", "brokers", "topics", "topic_ids", "configs"}
    others = {name: getattr(image, name) for name in image.__struct_fields__ if name not in known}
    others.pop("ledger")
    for name, value in (others | ledger).items():
        children[_camel(name)] = _thing(value)
    return Directory.of(dict(sorted(children.items())))


def _thing(value: Any) -> Callable[[], Node]:
    return lambda: Directory.of_table(value) if isinstance(value, Mapping) else File(plain(value))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _topics_by_id(image: MetadataImage) -> Directory:
    ids = {id_to_text(raw): raw for raw in image.topics}
    return Directory(lambda: sorted(ids), lambda name: _topic(image.topics[ids[name]]) if name in ids else None)


def _topic(topic: TopicImage | None) -> Directory | None:
    if topic is None:
        return None
    about = {"name": topic.name, "id": id_to_text(topic.topic_id)}
    numbers = {str(number): number for number in range(len(topic.partitions))}

    def child(name: str) -> Node | None:
        if name in numbers:
            return File(plain(topic.partitions[numbers[name]]))
        return File(about[name]) if name in about else None

    return Directory(lambda: [*about, *numbers], child)


def _configs(image: MetadataImage) -> Directory:
    resources = {f"{kind.name}:{name}" if name else kind.name: (kind, name) for kind, name in image.configs}
    return Directory(
        lambda: sorted(resources),
        lambda name: Directory.of_table(image.configs[resources[name]]) if name in resources else None,
    )


def _local(state: LoadedState) -> Directory:
    """Show the local state of the node whose files are read."""
    quorum = {"voters": state.voters, "latest_leader": state.leader, "hard_state": state.vote}
    names = [state.files.snapshot_path(each).rpartition("/")[2] for each in state.files.snapshots]
    segments = [state.files.segment_path(each).rpartition("/")[2] for each in state.files.segments]
    files = {"directory": state.files.directory, "snapshots": names, "segments": segments}
    return Directory.of({"quorum": lambda: File(quorum), "files": lambda: File(files)})
