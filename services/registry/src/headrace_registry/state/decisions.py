"""The decisions on clients' writes: decide, then replay.

A decision is made on an image, and changes nothing: it has the records to append, and the answer for the client. When
the records are committed, every replica applies them. A refused write raises a :class:`RegistryError`.

The checks have the order of Confluent's registry, because the order determines which error a client sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ..compat import STEPS_MAX, ComparisonTooLargeError, Level, check
from ..schemas import InvalidSchemaError, Parsed, Schema, SchemaType
from . import errors
from .cache import Cache
from .image import Image, StoredSchema, Version
from .parsing import SHOWN_MAX, Parser, Submission, resolved_characters, shortened, submission_of
from .records import (
    INT_MAX,
    ClearSubjectKey,
    Config,
    ConfigKey,
    DeleteSubjectKey,
    Mode,
    ModeKey,
    NoopKey,
    SchemaKey,
    SchemaValue,
    encode_clear_subject,
    encode_config,
    encode_delete_subject,
    encode_key,
    encode_max_id,
    encode_mode,
    encode_schema,
)

T_co = TypeVar("T_co", covariant=True)

Record = tuple[bytes, bytes | None]

#: Maximum number of characters of one reason in the answer to an incompatible schema.
REASON_MAX = 2_000
#: Maximum number of characters of the earlier versions with which a new schema is compared. A comparison takes
#: seconds for a million characters.
COMPARED_CHARACTERS_MAX = 16 << 20
#: The same with the schemas that the versions reference, which are parsed again for each version: about a minute.
REFERENCED_CHARACTERS_MAX = 64 << 20
#: Maximum number of steps of a quick comparison of two schemas: about 30 milliseconds.
QUICK_STEPS_MAX = 10_000
#: Limits of the cache of compared pairs of schemas: number of pairs, and characters of the reasons of all pairs.
PAIRS_MAX, REASONS_CHARACTERS_MAX = 20_000, 2 << 20

#: Maps a compatibility level to the directions in which two schemas are compared, in the order of Confluent's messages.
_CHECKS = {
    Level.BACKWARD: (Level.BACKWARD,),
    Level.BACKWARD_TRANSITIVE: (Level.BACKWARD,),
    Level.FORWARD: (Level.FORWARD,),
    Level.FORWARD_TRANSITIVE: (Level.FORWARD,),
    Level.FULL: (Level.FORWARD, Level.BACKWARD),
    Level.FULL_TRANSITIVE: (Level.FORWARD, Level.BACKWARD),
}


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """Records to append in one transaction, and the answer for the client once they are applied."""

    records: tuple[Record, ...]
    answer: T_co


@dataclass(frozen=True, slots=True)
class Rules:
    """The registry's configuration: ``schema.compatibility.level`` and ``mode.mutability``."""

    default_level: Level = Level.BACKWARD
    may_change_modes: bool = True


class NotQuickError(Exception):
    """A comparison takes too many steps for the event loop."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """The decisions, with the configuration and the parser that they need. ``steps_max``: limit of the comparison of
    two schemas."""

    rules: Rules = field(default_factory=Rules)
    parser: Parser = field(default_factory=Parser)
    _pairs: Cache[tuple[str, ...]] = field(default_factory=lambda: Cache(PAIRS_MAX, REASONS_CHARACTERS_MAX))
    _inlined: Cache[bool] = field(default_factory=lambda: Cache(PAIRS_MAX, 0))
    steps_max: int = STEPS_MAX

    @classmethod
    def of_threads(cls, rules: Rules, lock: AbstractContextManager[object]) -> Deciding:
        """Make a Deciding that several threads may use at the same time; ``lock`` guards the caches."""
        pairs: Cache[tuple[str, ...]] = Cache(PAIRS_MAX, REASONS_CHARACTERS_MAX, lock)
        return cls(rules, Parser(lock=lock), pairs, Cache(PAIRS_MAX, 0, lock))

    def quick(self) -> Deciding:
        """The same decisions, with the same caches, which raise NotQuickError for a comparison of many steps."""
        return replace(self, steps_max=QUICK_STEPS_MAX)

    # --- schemas -----------------------------------------------------------------------------------------------------

    def register(self, image: Image, submitted: Submission, *, normalize: bool) -> Decision[int]:
        """Register a schema as the next version of its subject; the answer is its id.

        A schema that the subject already has keeps its version and id, unless the submission names a version. If only
        another subject has the schema, the new version gets the same id. A submission without text means the latest
        schema of the subject.
        """
        subject = submitted.subject
        mode = image.mode_in_scope(subject)
        if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            raise errors.not_permitted(f"Subject {subject} is in read-only mode")
        if submitted.schema_id >= 0 and mode is not Mode.IMPORT:
            raise errors.not_permitted(f"Subject {subject} is not in import mode")
        if submitted.schema_id < 0 and mode is not Mode.READWRITE:
            raise errors.not_permitted(f"Subject {subject} is not in read-write mode")

        versions = image.versions(subject)
        live = [each for each in versions if not each.is_deleted]
        config = image.config_in_scope(subject, self.rules.default_level)
        submitted = _with_text(submitted, live, mode)
        parsed = self.parser.parse_submitted(image, submitted, is_new=submitted.schema_id < 0)
        schema = _canonical(submitted, parsed, normalize=normalize)
        known_id = image.id_of(schema)
        schema_id = submitted.schema_id
        if known_id is not None and schema_id in (-1, known_id):
            use = image.use(known_id, subject)
            if submitted.version == 0 and use is not None and not use.is_deleted:
                return Decision((), known_id)
            schema_id = known_id
        if submitted.version == 0:
            same = self._with_inlined_references(image, submitted, parsed, live)
            if same is not None and schema_id in (-1, same.stored.id):
                return Decision((), same.stored.id)

        if mode is not Mode.IMPORT:
            messages = self._incompatibilities(image, config, submitted, parsed, live)
            if messages:
                raise errors.incompatible_schema(subject, messages)
        next_version = image.next_version(subject)
        version = submitted.version if submitted.version > 0 else next_version
        if version != next_version and mode is not Mode.IMPORT:
            raise errors.invalid_schema("Version is not one more than previous version")
        if version > INT_MAX:
            raise errors.store_error(f"Subject {subject} has the highest possible version; use another subject")
        if schema_id < 0:
            schema_id = image.max_id + 1
            if schema_id > INT_MAX:
                raise errors.store_error(
                    "Error while registering the schema due to generating an ID that is already in use."
                )
        else:
            stored = image.schema(schema_id)
            if stored is not None and (stored.schema, stored.extras) != (schema, ""):
                raise errors.not_permitted(f"Overwrite new schema with id {schema_id} is not permitted.")
        # The new version replaces soft-deleted versions of the same schema.
        records: list[Record] = [
            (key, None)
            for each in versions
            if each.is_deleted and each.stored.id == schema_id and each.number < version
            for key in image.keys(each)
        ]
        if version != next_version:  # an import may replace a version, and the topic then forgets the version's id
            records.append(_max_id_record(image))
        records.append(_schema_record(Version(subject, version, StoredSchema(schema_id, schema))))
        return Decision(tuple(records), schema_id)

    def look_up(self, image: Image, submitted: Submission, *, normalize: bool, deleted: bool = False) -> Version | None:
        """The version with which a subject has a schema. ``deleted``: also find a soft-deleted version. Raises
        RegistryError 42201."""
        if not submitted.schema.text.strip():
            return None
        parsed = self.parser.parse_submitted(image, submitted, is_new=False)
        known_id = image.id_of(_canonical(submitted, parsed, normalize=normalize))
        if known_id is not None:
            use = image.use(known_id, submitted.subject)
            if use is not None and (deleted or not use.is_deleted):
                return use
        versions = [each for each in image.versions(submitted.subject) if deleted or not each.is_deleted]
        return self._with_inlined_references(image, submitted, parsed, versions)

    def compatibility(self, image: Image, submitted: Submission, earlier: Sequence[Version]) -> list[str]:
        """The reasons why the submitted schema is not compatible with the versions ``earlier`` (oldest first); empty if
        the schema is compatible. Raises RegistryError 42201."""
        if not submitted.schema.text.strip():
            raise errors.invalid_schema("Empty schema")
        parsed = self.parser.parse_submitted(image, submitted, is_new=True)
        config = image.config_in_scope(submitted.subject, self.rules.default_level)
        return self._incompatibilities(image, config, submitted, parsed, earlier)

    def _with_inlined_references(
        self, image: Image, submitted: Submission, parsed: Parsed, versions: Sequence[Version]
    ) -> Version | None:
        """Find the version whose references the client has copied into the text of an Avro schema. Java's Avro
        serializer sends schemas with copied references. If several versions match, the latest version is returned."""
        if parsed.type is not SchemaType.AVRO or parsed.references:
            return None
        mark = self.parser.mark(image, submitted)
        for version in reversed(versions):
            schema = version.stored.schema
            if schema.type is not parsed.type or not schema.references:
                continue
            pair = mark + self.parser.mark(image, submission_of(version))
            found = self._inlined.get(pair)
            if found is None:
                try:
                    resolved = self.parser.parse_version(image, version).formatted("resolved")
                except InvalidSchemaError:  # nested too deeply for any client's text
                    resolved = ""
                found = self._inlined.put(pair, resolved == parsed.canonical, 0)
            if found:
                return version
        return None

    def _incompatibilities(
        self, image: Image, config: Config, submitted: Submission, parsed: Parsed, earlier: Sequence[Version]
    ) -> list[str]:
        level = config.level or self.rules.default_level
        if level is Level.NONE:
            return []
        compared = earlier if level.is_transitive else earlier[-1:]
        characters = sum(len(each.stored.schema.text) for each in compared)
        if characters > COMPARED_CHARACTERS_MAX:
            raise errors.invalid_schema(
                f"cannot compare the schema with {len(compared)} versions of subject {submitted.subject}: they have "
                f"{characters} characters together, and the limit is {COMPARED_CHARACTERS_MAX}; delete old versions, "
                f"or set the level {level.removesuffix('_TRANSITIVE')}"
            )
        left = REFERENCED_CHARACTERS_MAX
        for each in compared:
            left -= resolved_characters(image, each.stored.schema, left)
            if left < 0 and level.is_transitive:
                raise errors.invalid_schema(
                    f"cannot compare the schema with {len(compared)} versions of subject {submitted.subject}: with the "
                    f"schemas that they reference, they have more than {REFERENCED_CHARACTERS_MAX} characters; delete "
                    f"old versions, or set the level {level.removesuffix('_TRANSITIVE')}"
                )
        mark = self.parser.mark(image, submitted)
        for version in reversed(compared):
            messages = self._between(image, level, mark, parsed, version)
            if messages:
                validates = "true" if config.validate_fields else "false"
                return [*messages, f"{{validateFields: '{validates}', compatibility: '{level}'}}"]
        return []

    def _between(self, image: Image, level: Level, mark: bytes, new: Parsed, version: Version) -> list[str]:
        """The reasons why ``new`` is not compatible with ``version``. ``mark``: the parser's hash of ``new`` and its
        references."""
        if new.type is not version.stored.schema.type:
            return ["Incompatible because of different schema type"]
        pair = mark + self.parser.mark(image, submission_of(version)) + level.removesuffix("_TRANSITIVE").encode()
        messages = self._pairs.get(pair)
        if messages is None:
            old = self.parser.parse_version(image, version)
            try:
                found = [each for one in _CHECKS[level] for each in check(one, new, [old], self.steps_max)]
            except ComparisonTooLargeError as error:
                if self.steps_max < STEPS_MAX:
                    raise NotQuickError from None
                raise errors.invalid_schema(
                    f"cannot compare the schema with version {version.number} of subject {version.subject}: "
                    f"{error.message}"
                ) from None
            messages = tuple(shortened(str(each), REASON_MAX) for each in found)
            self._pairs.put(pair, messages, sum(map(len, messages)))
        if not messages:
            return []
        text = version.stored.schema.text
        shown = f"'{text}'" if len(text) <= SHOWN_MAX else f"<truncated> '{text[:SHOWN_MAX]}...'"
        return [*messages, f"{{oldSchemaVersion: {version.number}}}", f"{{oldSchema: {shown}}}"]

    # --- deletion ----------------------------------------------------------------------------------------------------

    def delete_version(self, image: Image, subject: str, number: int, name: str, *, permanent: bool) -> Decision[int]:
        """Delete a version; the answer is its number. ``name`` is the version as the client wrote it."""
        version = image.version(subject, number, deleted=True)
        if version is None:
            raise (
                errors.version_not_found(number)
                if image.has_subject(subject, deleted=True)
                else errors.subject_not_found(subject)
            )
        if version.is_deleted and not permanent:
            raise errors.version_soft_deleted(subject, name)
        _check_writable(image, subject)
        if image.referenced_by(subject, version.number):
            raise errors.reference_exists(subject, version.number)
        if permanent:
            if not version.is_deleted:
                raise errors.version_not_soft_deleted(subject, version.number)
            return Decision(_removals(image, [version]), version.number)
        records = [_schema_record(replace(version, is_deleted=True))]
        if all(each.is_deleted or each is version for each in image.versions(subject)):
            records += _reset_settings(image, subject)
        return Decision(tuple(records), version.number)

    def delete_subject(self, image: Image, subject: str, *, permanent: bool) -> Decision[list[int]]:
        """Delete the versions of a subject; the answer is their numbers."""
        if not image.has_subject(subject, deleted=True):
            raise errors.subject_not_found(subject)
        if not permanent and not image.has_subject(subject):
            raise errors.subject_soft_deleted(subject)
        _check_writable(image, subject)
        versions = [each for each in image.versions(subject) if permanent or not each.is_deleted]
        for version in versions:
            if image.referenced_by(subject, version.number):
                raise errors.reference_exists(subject, version.number)
            if permanent and not version.is_deleted:
                raise errors.subject_not_soft_deleted(subject)
        numbers = [each.number for each in versions]
        if permanent:
            return Decision(_removals(image, versions), numbers)
        # Compaction removes an earlier DELETE_SUBJECT record of the subject, so the new record also covers the versions
        # that were deleted before.
        last = image.versions(subject)[-1].number
        deletion = (encode_key(DeleteSubjectKey(subject)), encode_delete_subject(subject, last))
        return Decision((deletion, *_reset_settings(image, subject)), numbers)

    # --- settings ----------------------------------------------------------------------------------------------------

    def set_config(self, image: Image, subject: str | None, config: Config) -> Decision[None]:
        """Change the settings of a subject or of the registry (None). A setting that ``config`` does not contain keeps
        its value."""
        _check_writable(image, subject)
        merged = (image.config(subject) or Config()).updated(config)
        return Decision(((encode_key(ConfigKey(subject)), encode_config(subject, merged)),), None)

    def delete_config(self, image: Image, subject: str | None) -> Decision[Config]:
        """Return a subject to the settings of the registry, or the registry to its defaults; the answer is the old
        configuration."""
        old = image.config(subject)
        if old is None and subject is not None:
            raise errors.subject_not_found(subject)
        _check_writable(image, subject)
        if old is None:
            return Decision((), Config(level=self.rules.default_level))
        return Decision(((encode_key(ConfigKey(subject)), None),), old)

    def set_mode(self, image: Image, subject: str | None, mode: Mode, *, force: bool) -> Decision[None]:
        """Set the mode of a subject or of the registry (None).

        Imports choose ids and versions, so mode IMPORT needs a subject without versions. The change to IMPORT deletes
        soft-deleted versions permanently. ``force`` skips both.
        """
        self._check_modes_may_change()
        records: list[Record] = []
        if mode is Mode.IMPORT and not force and image.mode_in_scope(subject) is not Mode.IMPORT:
            if image.has_subjects() if subject is None else image.has_subject(subject):
                raise errors.not_permitted("Cannot import since found existing subjects")
            names = image.subjects() if subject is None else [subject]
            versions = [version for name in names for version in image.versions(name)]
            for version in versions:
                if image.referenced_by(version.subject, version.number):
                    raise errors.reference_exists(version.subject, version.number)
            records += _removals(image, versions)
            records.append((encode_key(ClearSubjectKey(subject)), encode_clear_subject(subject)))
        records.append((encode_key(ModeKey(subject)), encode_mode(subject, mode)))
        return Decision(tuple(records), None)

    def delete_mode(self, image: Image, subject: str | None) -> Decision[Mode]:
        """Return a subject to the mode of the registry, or the registry to READWRITE; the answer is the old mode."""
        old = image.mode(subject)
        if old is None:
            assert subject is not None  # the whole registry always has a mode
            raise errors.subject_not_found(subject)
        self._check_modes_may_change()
        records = ((encode_key(ModeKey(subject)), None),) if image.sets_mode(subject) else ()
        return Decision(records, old)

    def _check_modes_may_change(self) -> None:
        if not self.rules.may_change_modes:
            raise errors.not_permitted("Mode changes are not allowed")


def _with_text(submitted: Submission, live: Sequence[Version], mode: Mode) -> Submission:
    if submitted.schema.text.strip():
        return submitted
    if not live or mode is Mode.IMPORT:
        raise errors.invalid_schema("Empty schema")
    return replace(submitted, schema=live[-1].stored.schema)


def _canonical(submitted: Submission, parsed: Parsed, *, normalize: bool) -> Schema:
    if not normalize:
        return Schema(parsed.type, parsed.canonical, parsed.references)
    try:
        return Schema(parsed.type, parsed.normalized, parsed.normalized_references)
    except InvalidSchemaError as error:
        raise errors.invalid_schema(f"Invalid schema {submitted}, details: {error.message}") from None


def _check_writable(image: Image, subject: str | None) -> None:
    if image.mode_in_scope(subject) in (Mode.READONLY, Mode.READONLY_OVERRIDE):
        # For the whole registry, Confluent's message has Java's "null" in place of a subject.
        raise errors.not_permitted(f"Subject {'null' if subject is None else subject} is in read-only mode")


def _schema_record(version: Version) -> Record:
    schema = version.stored.schema
    value = SchemaValue(
        version.subject,
        version.number,
        version.stored.id,
        schema.type,
        schema.text,
        schema.references,
        version.stored.extras,
        version.is_deleted,
    )
    return encode_key(SchemaKey(version.subject, version.number)), encode_schema(value)


def _removals(image: Image, versions: Sequence[Version]) -> tuple[Record, ...]:
    """Records that delete versions permanently. Compaction also removes the ids of permanently deleted versions, so one
    more record keeps the highest id."""
    if not versions:
        return ()
    removals = ((key, None) for each in versions for key in image.keys(each))
    return (_max_id_record(image), *removals)


def _max_id_record(image: Image) -> Record:
    return encode_key(NoopKey(is_max_id=True)), encode_max_id(image.max_id)


def _reset_settings(image: Image, subject: str) -> list[Record]:
    """Records that delete the mode and the settings of a subject whose last version is deleted."""
    records: list[Record] = []
    if image.sets_mode(subject):
        records.append((encode_key(ModeKey(subject)), None))
    if image.config(subject) is not None:
        records.append((encode_key(ConfigKey(subject)), None))
    return records
