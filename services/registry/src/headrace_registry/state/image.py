"""The state that a replica has applied from the topic ``_schemas``: subjects, versions, ids, references, settings and
modes.

Only ``apply`` changes an image, one record after the other, so the same records always give the same image. An image
skips a record that is unreadable, or whose id belongs to another schema, and logs a warning with the record's offset.
Confluent's registry skips such records too: one foreign record must not stop the registry. The id and the version of a
skipped schema are not assigned again. A client may use the id, and a new record would replace the skipped record.

**Ids.** A registration gives each schema one id; only imports can give a schema further ids. Two schemas are the same
if their types, canonical texts, references and ``extras`` are equal. Versions of several subjects share one
:class:`StoredSchema`, so a text is in memory once. A hash finds a schema by its content.

**Deletion.** A soft-deleted version stays in the image, marked as deleted. A null value removes a version. The image
forgets a schema without versions, but the id of the schema counts for ``max_id``.

**Drafts.** A writer decides on a ``draft``: a second image that begins as a copy and then applies records that are not
committed yet. The draft and the image share all parts that neither has changed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Generic, TypeVar

from ..compat import Level
from ..schemas import Schema
from .records import (
    ClearSubjectKey,
    Config,
    ConfigKey,
    DeleteSubjectKey,
    Key,
    Mode,
    ModeKey,
    NoopKey,
    SchemaKey,
    SchemaValue,
    UnreadableRecordError,
    decode_config,
    decode_delete_subject,
    decode_key,
    decode_max_id,
    decode_mode,
    decode_schema,
    encode_key,
)

logger = logging.getLogger("headrace.registry")

LATEST = -1

_K = TypeVar("_K")
_J = TypeVar("_J")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema with its id. ``extras``: JSON of the fields ``metadata`` and ``ruleSet``, which this registry only
    keeps. ``mark``: the fingerprint of the schema, which an image computes once."""

    id: int
    schema: Schema
    extras: str = ""
    mark: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject."""

    subject: str
    number: int
    stored: StoredSchema
    is_deleted: bool = False


def fingerprint(schema: Schema, extras: str = "") -> bytes:
    """A hash (16 bytes) of the type, text, references and ``extras`` of a schema. The text must be canonical."""
    found = blake2b(digest_size=16)
    parts = [schema.type, schema.text, extras]
    for each in schema.references:
        parts += [each.name, each.subject, str(each.version)]
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(4, "big"))
        found.update(data)
    return found.digest()


class _Groups(Generic[_K, _J, _V]):
    """Dicts of dicts. A copy shares the inner dicts with the original. Before a change of a shared inner dict, the
    changed side gets its own copy of this dict."""

    def __init__(self) -> None:
        self._groups: dict[_K, dict[_J, _V]] = {}
        self._own: set[_K] | None = None  # the keys of inner dicts that no other image shares; None: all

    def copy(self) -> _Groups[_K, _J, _V]:
        found: _Groups[_K, _J, _V] = _Groups()
        found._groups = self._groups.copy()
        found._own, self._own = set(), set()
        return found

    def __iter__(self) -> Iterator[_K]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, key: _K) -> bool:
        return key in self._groups

    def get(self, key: _K) -> dict[_J, _V]:
        """The inner dict to read; empty if there is none."""
        return self._groups.get(key) or {}

    def put(self, key: _K, inner: _J, value: _V) -> None:
        self._writable(key)[inner] = value

    def remove(self, key: _K, inner: _J) -> None:
        """Remove an entry that may be missing; an inner dict without entries is removed too."""
        if inner not in self.get(key):
            return
        group = self._writable(key)
        del group[inner]
        if not group:
            del self._groups[key]

    def _writable(self, key: _K) -> dict[_J, _V]:
        if self._own is not None and key not in self._own:
            self._groups[key] = self.get(key).copy()
            self._own.add(key)
        return self._groups.setdefault(key, {})


class Image:
    """The state of the registry. All methods but ``apply`` only read."""

    def __init__(self) -> None:
        self.max_id = 0  #: The highest id that any schema has had.
        self.offset = -1  #: The offset of the last applied record.
        self._versions: _Groups[str, int, Version] = _Groups()
        self._subjects: list[str] = []  # sorted
        self._stored: dict[int, StoredSchema] = {}
        self._uses: _Groups[int, str, tuple[int, ...]] = _Groups()  # id -> subject -> version numbers, ascending
        self._ids: dict[bytes, tuple[int, ...]] = {}  # fingerprint -> ids, the latest id last
        self._referenced_by: _Groups[tuple[str, int], int, None] = _Groups()  # version -> ids of referring schemas
        self._configs: dict[str | None, Config] = {}
        self._modes: dict[str | None, Mode] = {}
        self._skipped: dict[str, int] = {}  # subject -> the highest version of a schema that was skipped
        # keys whose bytes differ from the result of encode_key
        self._foreign_keys: dict[SchemaKey, frozenset[bytes]] = {}

    def draft(self) -> Image:
        """A copy of this image. A record that is applied to one of the two images does not change the other image."""
        found = Image()
        found.max_id, found.offset = self.max_id, self.offset
        found._versions = self._versions.copy()
        found._subjects = self._subjects.copy()
        found._stored = self._stored.copy()
        found._uses = self._uses.copy()
        found._ids = self._ids.copy()
        found._referenced_by = self._referenced_by.copy()
        found._configs = self._configs.copy()
        found._modes = self._modes.copy()
        found._skipped = self._skipped.copy()
        found._foreign_keys = self._foreign_keys.copy()
        return found

    # --- subjects and versions ---------------------------------------------------------------------------------------

    def subjects(self, prefix: str = "") -> Iterator[str]:
        """All subjects that begin with ``prefix`` and have a version, even only soft-deleted versions, sorted."""
        for index in range(bisect_left(self._subjects, prefix), len(self._subjects)):
            if not self._subjects[index].startswith(prefix):
                return
            yield self._subjects[index]

    def has_subject(self, subject: str, *, deleted: bool = False) -> bool:
        """Whether a subject has a version; with ``deleted``, soft-deleted versions count too."""
        found = self._versions.get(subject)
        if deleted:
            return bool(found)
        return any(not version.is_deleted for version in found.values())

    def has_subjects(self) -> bool:
        """Whether any subject has a version that is not soft-deleted."""
        return any(self.has_subject(each) for each in self._subjects)

    def versions(self, subject: str) -> list[Version]:
        """All versions of a subject, including soft-deleted versions, the oldest first."""
        found = self._versions.get(subject)
        return [found[number] for number in sorted(found)]

    def version(self, subject: str, number: int, *, deleted: bool = False) -> Version | None:
        """A version; ``LATEST`` is the highest version that is not soft-deleted, even if ``deleted`` is set."""
        found = self._versions.get(subject)
        if number == LATEST:
            live = [each for each, version in found.items() if not version.is_deleted]
            return found[max(live)] if live else None
        version = found.get(number)
        return version if version is not None and (deleted or not version.is_deleted) else None

    def next_version(self, subject: str) -> int:
        """The number of the next version: above all versions, including soft-deleted and skipped versions."""
        return 1 + max(*self._versions.get(subject), self._skipped.get(subject, 0), 0)

    def keys(self, version: Version) -> list[bytes]:
        """The keys of a version's records. Registries before 3.1 wrote other bytes, and compaction compares bytes: only
        a null value for each of the keys removes the version."""
        key = SchemaKey(version.subject, version.number)
        return [encode_key(key), *sorted(self._foreign_keys.get(key, ()))]

    # --- schemas -----------------------------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> StoredSchema | None:
        """The schema with the id ``schema_id``, even if all versions with this schema are soft-deleted; None if there
        is no such schema."""
        return self._stored.get(schema_id)

    def uses(self, schema_id: int, *, deleted: bool = False) -> list[Version]:
        """The versions of a schema, one for each subject, sorted by subject. For a subject with several versions, the
        result has the latest version that is not soft-deleted. With ``deleted``, a subject with only soft-deleted
        versions of the schema has the latest of these in the result."""
        found = (self.use(schema_id, subject) for subject in sorted(self._uses.get(schema_id)))
        return [each for each in found if each is not None and (deleted or not each.is_deleted)]

    def use(self, schema_id: int, subject: str) -> Version | None:
        """The latest version with which a subject uses a schema; a soft-deleted version only if there is no other."""
        versions = self._versions.get(subject)
        found = [versions[number] for number in self._uses.get(schema_id).get(subject, ())]
        return max(found, key=lambda each: (not each.is_deleted, each.number), default=None)

    def id_of(self, schema: Schema, extras: str = "") -> int | None:
        """The id of a schema whose text is canonical; the last assigned id if imports assigned several."""
        found = self._ids.get(fingerprint(schema, extras))
        return None if found is None else found[-1]

    def referenced_by(self, subject: str, number: int) -> list[int]:
        """The ids of the schemas that reference a version and have a version that is not soft-deleted, sorted."""
        return sorted(each for each in self._referenced_by.get((subject, number)) if self._is_in_use(each))

    def _is_in_use(self, schema_id: int) -> bool:
        uses = (self.use(schema_id, subject) for subject in self._uses.get(schema_id))
        return any(each is not None and not each.is_deleted for each in uses)

    @property
    def schema_count(self) -> int:
        return len(self._stored)

    # --- settings ----------------------------------------------------------------------------------------------------

    def config(self, subject: str | None) -> Config | None:
        """The settings of ``subject`` itself, or the registry's settings if ``subject`` is None."""
        return self._configs.get(subject)

    def config_in_scope(self, subject: str | None, default: Level) -> Config:
        """The settings that apply to a subject: its own, then the registry's, then the default level."""
        own = self._configs.get(subject)
        registry = self._configs.get(None) or Config()
        found = registry if own is None else own
        return replace(found, level=found.level or registry.level or default)

    def mode(self, subject: str | None) -> Mode | None:
        """The mode of ``subject``, or the registry's mode if ``subject`` is None. If the registry's mode is
        READONLY_OVERRIDE, it replaces the mode of every subject. The result is None if the subject has no mode."""
        registry = self._modes.get(None, Mode.READWRITE)
        if subject is None or registry is Mode.READONLY_OVERRIDE:
            return registry
        return self._modes.get(subject)

    def mode_in_scope(self, subject: str | None) -> Mode:
        """The mode that applies to a subject: its own, then the registry's."""
        return self.mode(subject) or self._modes.get(None, Mode.READWRITE)

    def sets_mode(self, subject: str | None) -> bool:
        """Whether ``subject`` itself has a mode, so that it does not inherit one. If ``subject`` is None: whether the
        registry has a mode."""
        return subject in self._modes

    # --- replay ------------------------------------------------------------------------------------------------------

    def apply(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        """Apply a record of the topic. A record that cannot be applied is skipped with a warning."""
        self.offset = offset
        try:
            found = decode_key(key)
            if isinstance(found, SchemaKey):
                self._note_key(found, key, is_deleted=value is None)
            if found is None:
                logger.debug(
                    "record at offset %d of _schemas skipped: a kind that this registry does not serve", offset
                )
            elif value is None:
                self._delete(found)
            else:
                self._put(found, value)
        except UnreadableRecordError as error:
            self.max_id = max(self.max_id, error.schema_id)
            logger.warning("skipped the record at offset %d of _schemas: %s", offset, error)

    def _note_key(self, key: SchemaKey, data: bytes | None, *, is_deleted: bool) -> None:
        if data is None or data == encode_key(key):
            return
        kept = self._foreign_keys.get(key, frozenset())
        kept = kept - {data} if is_deleted else kept | {data}
        if kept:
            self._foreign_keys[key] = kept
        else:
            self._foreign_keys.pop(key, None)

    def _delete(self, key: Key) -> None:
        match key:
            case SchemaKey(subject, version):
                self._remove(subject, version)
            case ConfigKey(subject):
                self._configs.pop(subject, None)
            case ModeKey(subject):
                self._modes.pop(subject, None)
            case DeleteSubjectKey() | ClearSubjectKey() | NoopKey():
                pass  # these records are events, so their deletion has no effect

    def _put(self, key: Key, value: bytes) -> None:
        match key:
            case SchemaKey(subject, version):
                try:
                    self._put_schema(decode_schema(key, value))
                except UnreadableRecordError:
                    self._skipped[subject] = max(version, self._skipped.get(subject, 0))
                    raise
            case ConfigKey(subject):
                self._configs[subject] = decode_config(value)
            case ModeKey(subject):
                self._modes[subject] = decode_mode(value)
            case DeleteSubjectKey(subject):
                last = decode_delete_subject(value)
                for number, found in list(self._versions.get(subject).items()):
                    if number <= last and not found.is_deleted:
                        self._versions.put(subject, number, replace(found, is_deleted=True))
            case ClearSubjectKey(subject):
                for name in list(self._subjects) if subject is None else [subject]:
                    for found in self.versions(name):
                        if found.is_deleted:
                            self._remove(name, found.number)
            case NoopKey(is_max_id):
                if is_max_id:
                    self.max_id = max(self.max_id, decode_max_id(value))

    def _put_schema(self, value: SchemaValue) -> None:
        schema = Schema(value.type, value.text, value.references)
        self.max_id = max(self.max_id, value.id)
        stored = self._stored.get(value.id)
        if stored is not None and (stored.schema, stored.extras) != (schema, value.extras):
            raise UnreadableRecordError(
                f"version {value.version} of subject {value.subject} has the id {value.id} of another schema"
            )
        old = self._versions.get(value.subject).get(value.version)
        if old is not None and old.stored.id != value.id:  # registered in mode IMPORT
            self._remove(value.subject, value.version)
        if stored is None:
            stored = StoredSchema(value.id, schema, value.extras, fingerprint(schema))
            self._stored[value.id] = stored
            for each in schema.references:
                self._referenced_by.put((each.subject, each.version), value.id, None)
        mark = fingerprint(schema, value.extras)
        self._ids[mark] = (*(each for each in self._ids.get(mark, ()) if each != value.id), value.id)
        if value.subject not in self._versions:
            insort(self._subjects, value.subject)
        self._versions.put(
            value.subject, value.version, Version(value.subject, value.version, stored, value.is_deleted)
        )
        numbers = {*self._uses.get(value.id).get(value.subject, ()), value.version}
        self._uses.put(value.id, value.subject, tuple(sorted(numbers)))

    def _remove(self, subject: str, number: int) -> None:
        version = self._versions.get(subject).get(number)
        if version is None:
            return
        self._versions.remove(subject, number)
        if subject not in self._versions:
            del self._subjects[bisect_left(self._subjects, subject)]
        stored = version.stored
        numbers = tuple(each for each in self._uses.get(stored.id)[subject] if each != number)
        if numbers:
            self._uses.put(stored.id, subject, numbers)
        else:
            self._uses.remove(stored.id, subject)
        if stored.id in self._uses:
            return
        del self._stored[stored.id]
        for each in stored.schema.references:
            self._referenced_by.remove((each.subject, each.version), stored.id)
        mark = fingerprint(stored.schema, stored.extras)
        rest = tuple(each for each in self._ids[mark] if each != stored.id)
        if rest:
            self._ids[mark] = rest
        else:
            del self._ids[mark]
