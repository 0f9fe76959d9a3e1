"""Parsing with a bounded cache, and the resolution of references against an image.

The cache holds results of pure functions: it changes the speed of a decision, never its answer. The meaning of a
reference depends on the image, because the number of a permanently deleted version can be registered again. The key of
the cache therefore contains a hash of each referenced schema. An id is not enough: an import may give the id of a
permanently deleted schema to another schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from weakref import WeakValueDictionary

from ..schemas import InvalidSchemaError, Parsed, Reference, Schema, parse
from ..schemas.model import REFERENCES_MAX
from .cache import Cache
from .errors import RegistryError, invalid_schema
from .image import LATEST, Image, StoredSchema, Version, fingerprint

#: Maximum number of parsed schemas in the cache, and of characters of their texts and of the texts that they reference.
#: A parsed schema takes much more memory than its text, and keeps the types of its references.
ENTRIES_MAX = 1_000
CHARACTERS_MAX = 2 << 20
#: Maximum number of characters of a schema that an error message quotes, as in Confluent's registry.
SHOWN_MAX = 10 * 1024


@dataclass(frozen=True, slots=True)
class Submission:
    """A schema as a client submitted it for a subject. ``version`` 0 and ``schema_id`` -1: the registry chooses."""

    subject: str
    schema: Schema
    version: int = 0
    schema_id: int = -1

    def __str__(self) -> str:
        """The submission as Confluent's messages show it."""
        return (
            f"{{subject={self.subject},version={self.version},id={self.schema_id},schemaType={self.schema.type},"
            f"references={shown_references(self.schema.references)},metadata=null,ruleSet=null,"
            f"schema={shortened(self.schema.text)}}}"
        )


def shown_references(references: tuple[Reference, ...]) -> str:
    """References as Confluent's messages show them."""
    items = (f"{{name='{each.name}', subject='{each.subject}', version={each.version}}}" for each in references)
    return shortened(f"[{', '.join(items)}]")


def shortened(text: str, most: int = SHOWN_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class Parser:
    """Parses schemas, and keeps the most recently used results up to ``entries_max`` and ``characters_max``. A result
    that a request still uses is found even if the cache has no room for it."""

    def __init__(
        self,
        entries_max: int = ENTRIES_MAX,
        characters_max: int = CHARACTERS_MAX,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._results: Cache[Parsed] = Cache(entries_max, characters_max, lock)
        self._in_use: WeakValueDictionary[bytes, Parsed] = WeakValueDictionary()
        self._lock = lock or nullcontext()

    def __len__(self) -> int:
        return len(self._results)

    def parse_submitted(self, image: Image, submitted: Submission, *, is_new: bool) -> Parsed:
        """Parse a submitted schema. ``is_new``: the schema may become a version, so its defaults must be valid and its
        references must not be soft-deleted. Raises RegistryError 42201."""
        job = self.job(image, submitted, is_new=is_new)
        return self.kept(job) or self.keep(job, job.run())

    def parse_version(self, image: Image, version: Version) -> Parsed:
        """Parse a registered version. Raises RegistryError 42201 if the version's schema is invalid, which happens when
        another registry has written the topic."""
        return self.parse_submitted(image, submission_of(version), is_new=False)

    def mark(self, image: Image, submitted: Submission) -> bytes:
        """A hash of a schema and of all schemas that it references. Raises RegistryError 42201."""
        return self.job(image, submitted, is_new=False).key

    def job(self, image: Image, submitted: Submission, *, is_new: bool) -> Job:
        """The work of ``parse_submitted``, which a caller may run in another thread. Raises RegistryError 42201."""
        references = with_versions(image, submitted.schema.references)
        submitted = replace(submitted, schema=replace(submitted.schema, references=references))
        try:
            resolved = resolve(image, references, deleted=not is_new)
        except InvalidSchemaError as error:
            raise _invalid(submitted, error) from None
        schemas = {name: stored.schema for name, stored in resolved.items()}
        marks = "".join(
            f"{name}\0{stored.mark.hex()}\0" for name, stored in sorted(resolved.items(), key=itemgetter(0))
        )
        return Job(fingerprint(submitted.schema, f"{is_new}\0{marks}"), submitted, schemas, is_new)

    def kept(self, job: Job) -> Parsed | None:
        """The result of an earlier job of the same schema, if it is still in the cache or in use."""
        found = self._results.get(job.key)
        if found is None:
            with self._lock:
                found = self._in_use.get(job.key)
        return found

    def keep(self, job: Job, parsed: Parsed) -> Parsed:
        """Put the result of a job into the cache."""
        with self._lock:
            self._in_use[job.key] = parsed
        return self._results.put(job.key, parsed, job.characters + parsed.kept_characters)


@dataclass(frozen=True, slots=True)
class Job:
    """A schema to parse, with all schemas that it references by name. ``run`` is pure."""

    key: bytes
    submitted: Submission
    resolved: Mapping[str, Schema]
    is_new: bool

    @property
    def characters(self) -> int:
        """The total length of all texts."""
        return len(self.submitted.schema.text) + sum(len(each.text) for each in self.resolved.values())

    def run(self) -> Parsed:
        """Raises RegistryError 42201."""
        try:
            return parse(self.submitted.schema, self.resolved, is_new=self.is_new)
        except InvalidSchemaError as error:
            raise _invalid(self.submitted, error) from None


def submission_of(version: Version) -> Submission:
    return Submission(version.subject, version.stored.schema, version.number, version.stored.id)


def _invalid(submitted: Submission, error: InvalidSchemaError) -> RegistryError:
    references = shown_references(submitted.schema.references)
    details = shortened(error.message)
    return invalid_schema(
        f"Invalid schema {submitted} with refs {references} of type {submitted.schema.type}, details: {details}"
    )


def with_versions(image: Image, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
    """The references with version -1 replaced by the latest version of their subjects, as Confluent stores them."""
    found = []
    for each in references:
        latest = image.version(each.subject, LATEST) if each.version == LATEST else None
        found.append(each if latest is None else Reference(each.name, each.subject, latest.number))
    return tuple(found)


def resolved_characters(image: Image, schema: Schema, most: int) -> int:
    """The length of a schema together with all schemas that it references. The sum ends when it is above ``most``."""
    total = len(schema.text)
    for _, version in _referenced(image, schema.references, deleted=True):
        if total > most:
            break
        total += 0 if version is None else len(version.stored.schema.text)
    return total


def resolve(image: Image, references: tuple[Reference, ...], *, deleted: bool) -> dict[str, StoredSchema]:
    """The schema of each reference by name, also of references of references. If two references have the same name, the
    first one is used. ``deleted``: soft-deleted versions are found too.

    Raises InvalidSchemaError for a missing version, and for more than REFERENCES_MAX references.
    """
    found: dict[str, StoredSchema] = {}
    for each, version in _referenced(image, references, deleted=deleted):
        if version is None:
            raise InvalidSchemaError(
                f'No schema reference found for subject "{each.subject}" and version {each.version}'
            )
        if len(found) == REFERENCES_MAX:
            raise InvalidSchemaError(
                f"the schema has more than {REFERENCES_MAX} references, direct and transitive; reference fewer schemas"
            )
        found[each.name] = version.stored
    return found


def _referenced(
    image: Image, references: tuple[Reference, ...], *, deleted: bool
) -> Iterator[tuple[Reference, Version | None]]:
    """Each reference, direct or transitive, with its version; None for a version that does not exist."""
    seen: set[str] = set()
    stack = list(reversed(references))
    while stack:
        each = stack.pop()
        if each.name in seen:
            continue
        seen.add(each.name)
        version = image.version(each.subject, each.version, deleted=deleted)
        yield each, version
        if version is not None:
            stack.extend(reversed(version.stored.schema.references))
