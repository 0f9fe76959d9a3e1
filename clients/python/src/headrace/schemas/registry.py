"""SchemaRegistry: the client of a schema registry, Headrace's or any other with Confluent's REST API.

The schema with a given id never changes, so the client reads each schema only once. Source: Confluent's documentation,
"Schema Registry API".
"""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypedDict, Unpack
from urllib.parse import quote, urlencode

from .cache import Bounded
from .errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaError,
    SchemaNotFoundError,
    UnknownSchemaIdError,
)
from .flights import Flights
from .models import Compatibility, Mode, Reference, RegisteredSchema, ResolvedSchema, Schema, SchemaType
from .settings import DEFAULT_URL, URL_VARIABLE, registry_values
from .transport import Answer, Transport

#: Maximum number of schemas that one schema may reference, directly and through other references, and the maximum
#: bytes of their texts.
REFERENCES_MAX: Final = 1_000
REFERENCES_BYTES_MAX: Final = 16 * 1024 * 1024
#: Maximum number of levels of references.
DEPTH_MAX: Final = 100
#: Number of versions on one page of list_versions.
PAGE: Final = 500
#: A registry that limits its list of subjects returns at least this number of subjects at once (by default 20,000).
SUBJECTS_MIN: Final = 1_000


class RegistrySettings(TypedDict, total=False):
    """Keywords of SchemaRegistry."""

    schema_registry_url: str | Sequence[str] | None
    url: str | Sequence[str] | None
    basic_auth_user_info: str | None
    bearer_auth_token: str | None
    ssl_ca_location: str | None
    ssl_certificate_location: str | None
    ssl_key_location: str | None
    request_timeout_ms: int | None
    retries: int | None
    retry_backoff_ms: int | None
    retry_backoff_max_ms: int | None
    cache_capacity: int | None
    latest_cache_ttl_ms: int | None
    failure_cache_ms: int | None


@dataclass(frozen=True, slots=True)
class _Latest:
    registered: RegisteredSchema
    resolved: ResolvedSchema
    fresh_until: float


@dataclass(frozen=True, slots=True)
class LatestVersion:
    """A subject's latest version, and the schema with its references."""

    registered: RegisteredSchema
    resolved: ResolvedSchema


class SchemaRegistry:
    """A client of a schema registry.

        with SchemaRegistry("http://127.0.0.1:8081") as registry:
            registry.register("orders-value", Schema('{"type": "string"}'))
            print(registry.version("orders-value").schema.text)

    Pass the URL, or several URLs of one registry, which are tried in turn; or a dict with dotted names; or keywords.
    Thread-safe. The client connects at its first call. Every method may raise RegistryUnavailableError (no URL answers)
    and RegistryRefusedError. ``close`` closes the connections; serializers that use the closed client continue with the
    schemas in their caches.
    """

    def __init__(
        self, config: str | Sequence[str] | Mapping[str, Any] | None = None, /, **settings: Unpack[RegistrySettings]
    ) -> None:
        self._given = (config, dict(settings))
        values = registry_values(config, settings)
        urls = values["schema.registry.url"] or [os.environ.get(URL_VARIABLE) or DEFAULT_URL]
        urls = [each for url in urls for each in url.split(",") if each]
        self._transport = Transport(values, urls)
        self._latest_ttl_s: float = values["latest.cache.ttl.ms"] / 1000
        capacity: int = values["cache.capacity"]
        self.cache_capacity = capacity
        self._flights = Flights(values["failure.cache.ms"] / 1000, capacity)
        self._by_id: Bounded[tuple[int, bool], ResolvedSchema] = Bounded(capacity)
        self._referring: Bounded[tuple[Schema, bool], ResolvedSchema] = Bounded(capacity)
        self._ids: Bounded[tuple[str, Schema, bool, bool], RegisteredSchema] = Bounded(capacity)
        self._latest: Bounded[tuple[str, bool], _Latest] = Bounded(capacity)
        _registries.add(self)

    def __repr__(self) -> str:
        return f"<SchemaRegistry {', '.join(self._transport.urls)}>"

    def __reduce__(self) -> tuple[Callable[..., SchemaRegistry], tuple[Any, ...]]:
        """Pickle only the settings; connections and caches stay in this process."""
        return _unpickled, self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def after_fork(self) -> None:
        """In a child process: forget the parent's connections and threads, keep the caches."""
        self._transport.after_fork()
        self._flights.after_fork()
        for cache in (self._by_id, self._referring, self._ids, self._latest):
            cache.after_fork()

    # --- schemas -----------------------------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id; cached. Raises UnknownSchemaIdError."""
        return self.resolved(schema_id).schema

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Register a schema as the subject's next version; if the subject has the schema already, return that version.
        Raises IncompatibleSchemaError, InvalidSchemaError."""
        path = f"/subjects/{_quoted(subject)}/versions{_query(normalize=normalize)}"
        answer = self._transport.request("POST", path, _body(schema))
        found = self._checked(answer, subject=subject, what="register a schema")
        try:
            schema_id = int(found["id"])
        except (KeyError, TypeError, ValueError):
            raise RegistryRefusedError(f"the registry's answer has no id: {found!r:.80}", subject=subject) from None
        if isinstance(found.get("version"), int):
            return RegisteredSchema(subject, found["version"], schema_id, schema)
        return self._registered_now(subject, schema, normalize)

    def _registered_now(self, subject: str, schema: Schema, normalize: bool) -> RegisteredSchema:
        """Look up the version of a schema that was just registered, because older registries return only the id. The
        replica that answers may be slightly behind the replica that registered the schema."""
        pause_s = 0.05
        while True:
            try:
                return self.lookup(subject, schema, normalize=normalize)
            except SchemaNotFoundError:
                if pause_s > 1:
                    raise
            time.sleep(pause_s)
            pause_s *= 2

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        """The version of the subject that has this schema. Raises SchemaNotFoundError, InvalidSchemaError."""
        path = f"/subjects/{_quoted(subject)}{_query(normalize=normalize, deleted=deleted)}"
        answer = self._transport.request("POST", path, _body(schema))
        return _registered(self._checked(answer, subject=subject, what="look up a schema"))

    def version(self, subject: str, version: int | str = "latest", *, deleted: bool = False) -> RegisteredSchema:
        """A version of a subject by its number, or ``latest``. Raises SchemaNotFoundError."""
        return self._version(subject, version, deleted=deleted, serialized=False)

    def list_versions(
        self, prefix: str = "", *, latest_only: bool = False, deleted: bool = False
    ) -> Iterator[RegisteredSchema]:
        """All versions of all subjects that begin with ``prefix``, in pages. ``latest_only``: only the latest version
        of each subject; ``deleted``: also soft-deleted versions."""
        flags = {"latestOnly": "true"} if latest_only else {}
        if prefix:
            flags["subjectPrefix"] = prefix
        offset, limit = 0, PAGE
        before: list[dict[str, Any]] = []
        while True:
            query = _query(flags | {"offset": str(offset), "limit": str(limit)}, deleted=deleted)
            answer = self._transport.request("GET", f"/schemas{query}")
            if answer.status == 422 and limit > 1:  # a page of this many long schemas is too large
                limit //= 2
                continue
            found = _list(self._checked(answer, what="list schemas"), dict)
            # A registry may end a page early, so only an empty page is the last one. An old registry ignores the
            # offset, and repeats the whole list.
            if not found or found == before:
                return
            yield from map(_registered, found)
            offset += len(found)
            before = found

    def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """The names of all subjects that begin with ``prefix``; ``deleted``: also soft-deleted subjects."""
        more = {"subjectPrefix": prefix} if prefix else {}
        names: dict[str, None] = {}
        offset = 0
        while True:
            answer = self._transport.request("GET", f"/subjects{_query(more, deleted=deleted)}")
            found = _list(self._checked(answer, what="list the subjects"), str)
            known = len(names)
            names.update(dict.fromkeys(found))
            # A registry with many subjects returns a part of them. An old registry ignores the offset, and repeats all.
            if len(found) < SUBJECTS_MIN or len(names) == known:
                return [each for each in names if each.startswith(prefix)]
            offset += len(found)
            more["offset"] = str(offset)

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The version numbers of a subject, oldest first. Raises SchemaNotFoundError."""
        path = f"/subjects/{_quoted(subject)}/versions{_query(deleted=deleted)}"
        answer = self._transport.request("GET", path)
        return _list(self._checked(answer, subject=subject, what="list the versions"), int)

    def uses(self, schema_id: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """(subject, version) of each version that has the schema with this id. Raises UnknownSchemaIdError."""
        path = f"/schemas/ids/{int(schema_id)}/versions{_query(deleted=deleted)}"
        found = self._checked(
            self._transport.request("GET", path), schema_id=schema_id, what="find a schema's versions"
        )
        return [(str(each["subject"]), int(each["version"])) for each in _list(found, dict)]

    def delete_version(self, subject: str, version: int | str, *, permanent: bool = False) -> int:
        """Delete a version; return its number. By default the version is soft-deleted: its schema can still be read by
        its id. Only a soft-deleted version can be deleted permanently. Raises SchemaNotFoundError."""
        path = f"/subjects/{_quoted(subject)}/versions/{_quoted(str(version))}{_query(permanent=permanent)}"
        answer = self._transport.request("DELETE", path)
        found = self._checked(answer, subject=subject, version=version, what="delete a version")
        self._forget(subject)
        return int(found)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject; return their numbers. ``permanent`` has the same meaning as in
        ``delete_version``. Raises SchemaNotFoundError."""
        answer = self._transport.request("DELETE", f"/subjects/{_quoted(subject)}{_query(permanent=permanent)}")
        found = _list(self._checked(answer, subject=subject, what="delete a subject"), int)
        self._forget(subject)
        return found

    def _forget(self, subject: str) -> None:
        for serialized in (False, True):
            self._latest.remove((subject, serialized))
        self._ids.clear()

    # --- compatibility and mode --------------------------------------------------------------------------------------

    def check(
        self, subject: str, schema: Schema, version: int | str | None = "latest", *, normalize: bool = False
    ) -> list[str]:
        """The reasons why the schema is incompatible with a version of the subject, under the subject's compatibility
        level. ``version=None`` checks all versions that this level compares. An empty list means compatible. A subject
        without versions is compatible with any schema. Raises SchemaNotFoundError (no such version),
        InvalidSchemaError."""
        last = "" if version is None else f"/{_quoted(str(version))}"
        path = f"/compatibility/subjects/{_quoted(subject)}/versions{last}{_query(verbose=True, normalize=normalize)}"
        answer = self._transport.request("POST", path, _body(schema))
        if answer.status == 404 and _error_code(answer) == 40401:  # no subject yet: its first version may be any schema
            return []
        found = self._checked(answer, subject=subject, version=version, what="check a schema")
        if not isinstance(found, dict) or not isinstance(found.get("is_compatible"), bool):
            raise RegistryRefusedError(
                f"cannot check a schema: the registry's answer lacks is_compatible: {found!r:.80}", status=answer.status
            )
        if found["is_compatible"]:
            return []
        said = [str(each) for each in found.get("messages") or ()]
        return _reasons(said) or ["the registry gives no reason"]

    def compatibility(self, subject: str | None = None) -> Compatibility:
        """The compatibility level of a subject, or of the registry."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}{_query(defaultToGlobal=True)}"
        found = self._checked(self._transport.request("GET", path), subject=subject, what="read a compatibility level")
        return Compatibility(found["compatibilityLevel"])

    def set_compatibility(self, level: Compatibility | str | None, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or of the registry; None removes the level of a subject."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        if level is None:
            answer = self._transport.request("DELETE", path)
        else:
            answer = self._transport.request("PUT", path, {"compatibility": Compatibility(level).value})
        self._checked(answer, subject=subject, what="set a compatibility level")

    def mode(self, subject: str | None = None) -> Mode:
        """The mode of a subject, or of the registry."""
        path = "/mode" if subject is None else f"/mode/{_quoted(subject)}{_query(defaultToGlobal=True)}"
        found = self._checked(self._transport.request("GET", path), subject=subject, what="read a mode")
        return Mode(found["mode"])

    def set_mode(self, mode: Mode | str | None, subject: str | None = None, *, force: bool = False) -> None:
        """Set the mode of a subject, or of the registry; None removes the mode of a subject. ``force``: allow the mode
        IMPORT even if schemas are registered."""
        path = "/mode" if subject is None else f"/mode/{_quoted(subject)}"
        if mode is None:
            answer = self._transport.request("DELETE", path)
        else:
            answer = self._transport.request("PUT", f"{path}{_query(force=force)}", {"mode": Mode(mode).value})
        self._checked(answer, subject=subject, what="set a mode")

    # --- for serializers ---------------------------------------------------------------------------------------------

    def resolved(self, schema_id: int, *, serialized: bool = False, may_wait: bool = True) -> ResolvedSchema:
        """The schema with this id and all its references; cached. ``serialized``: a Protobuf schema as the base64 of
        its file descriptor. Raises UnknownSchemaIdError. If the schema is not cached and ``may_wait`` is False, raises
        WouldWait."""
        return self._flights.find(
            (schema_id, serialized), self._by_id, lambda: self._fetch_id(schema_id, serialized), may_wait=may_wait
        )

    def with_references(self, schema: Schema, *, serialized: bool = False, may_wait: bool = True) -> ResolvedSchema:
        """The schema and all its references, with the id -1. The result is cached; a schema without references needs no
        request."""
        if not schema.references:
            return ResolvedSchema(-1, schema)
        return self._flights.find(
            (schema, serialized),
            self._referring,
            lambda: self._resolve(-1, schema, serialized, uses=()),
            may_wait=may_wait,
        )

    def registered(
        self, subject: str, schema: Schema, *, normalize: bool, register: bool, may_wait: bool = True
    ) -> RegisteredSchema:
        """The version of the subject that has this schema; cached. ``register``: register the schema if the subject
        does not have it. Raises SchemaNotFoundError, IncompatibleSchemaError, InvalidSchemaError; WouldWait unless
        ``may_wait``."""

        def fetch() -> RegisteredSchema:
            call = self.register if register else self.lookup
            return call(subject, schema, normalize=normalize)

        return self._flights.find((subject, schema, normalize, register), self._ids, fetch, may_wait=may_wait)

    def latest(self, subject: str, *, serialized: bool = False, may_wait: bool = True) -> LatestVersion:
        """The subject's latest version; cached. When the cached version is older than latest.cache.ttl.ms, the client
        asks again in the background, and returns the cached version until the answer arrives. Raises
        SchemaNotFoundError; WouldWait unless ``may_wait``."""
        key = (subject, serialized)

        def fetch() -> _Latest:
            try:
                found = self._version(subject, "latest", deleted=False, serialized=serialized)
            except SchemaNotFoundError:
                self._latest.remove(key)  # the subject was deleted
                raise
            resolved = self._resolve(found.id, found.schema, serialized, uses=((subject, found.version),))
            return _Latest(found, resolved, time.monotonic() + self._latest_ttl_s)

        found = self._flights.find(key, self._latest, fetch, may_wait=may_wait)
        if time.monotonic() > found.fresh_until:
            self._flights.refresh(key, self._latest, fetch)
        return LatestVersion(found.registered, found.resolved)

    @property
    def latest_ttl_s(self) -> float:
        """latest.cache.ttl.ms in seconds."""
        return self._latest_ttl_s

    def _fetch_id(self, schema_id: int, serialized: bool) -> ResolvedSchema:
        path = f"/schemas/ids/{schema_id}{_query(_format(serialized))}"
        answer = self._transport.request("GET", path)
        document = self._checked(answer, schema_id=schema_id, what="get a schema")
        try:
            uses = tuple(self.uses(schema_id))
        except SchemaError as error:
            if isinstance(error, RegistryUnavailableError):
                raise
            uses = ()  # a registry older than version 5.5 does not say
        return self._resolve(schema_id, _schema(document), serialized, uses=uses)

    def _version(self, subject: str, version: int | str, *, deleted: bool, serialized: bool) -> RegisteredSchema:
        query = _query(_format(serialized), deleted=deleted)
        path = f"/subjects/{_quoted(subject)}/versions/{_quoted(str(version))}{query}"
        answer = self._transport.request("GET", path)
        return _registered(self._checked(answer, subject=subject, version=version, what="get a version"))

    def _resolve(
        self, schema_id: int, schema: Schema, serialized: bool, *, uses: tuple[tuple[str, int], ...]
    ) -> ResolvedSchema:
        """Get the references of a schema, depth first. Raises InvalidSchemaError for a cycle, or for too many
        references."""
        found: dict[str, Schema] = {}
        size = 0

        def collect(references: Sequence[Reference], above: tuple[str, ...]) -> None:
            nonlocal size
            if len(found) + len(references) > REFERENCES_MAX or size > REFERENCES_BYTES_MAX or len(above) > DEPTH_MAX:
                raise InvalidSchemaError(
                    f"the schema with id {schema_id} references too much: the limits are {REFERENCES_MAX:,} schemas, "
                    f"{REFERENCES_BYTES_MAX:,} bytes in all, and {DEPTH_MAX} levels",
                    schema_id=schema_id,
                )
            for each in references:
                if each.name in above:
                    raise InvalidSchemaError(
                        f"the references of the schema with id {schema_id} form a cycle: "
                        f"{' -> '.join((*above, each.name))}",
                        schema_id=schema_id,
                        subject=each.subject,
                        version=each.version,
                        path=each.name,
                    )
                if each.name in found:
                    continue
                one = self._version(each.subject, each.version, deleted=True, serialized=serialized).schema
                size += len(one.text)
                collect(one.references, (*above, each.name))
                found[each.name] = one

        collect(schema.references, ())
        return ResolvedSchema(schema_id, schema, found, uses)

    def _checked(
        self,
        answer: Answer,
        *,
        what: str,
        subject: str | None = None,
        version: int | str | None = None,
        schema_id: int | None = None,
    ) -> Any:
        """Return the document of a successful response. Raise the error that any other response reports."""
        if 200 <= answer.status < 300:
            return answer.document
        document = answer.document if isinstance(answer.document, dict) else {}
        code = _error_code(answer)
        said = str(document.get("message") or f"HTTP status {answer.status}")
        number = version if isinstance(version, int) else None
        place: dict[str, Any] = {"subject": subject, "version": number, "schema_id": schema_id}
        if answer.status == 404 and schema_id is not None:
            raise UnknownSchemaIdError(
                f"the registry at {self._transport.urls[0]} has no schema with id {schema_id} ({said}); was the record "
                "written with another registry?",
                **place,
            )
        if answer.status == 404 and subject is not None:
            named = f"subject {subject!r}" + ("" if version is None else f" version {version}")
            raise SchemaNotFoundError(f"cannot {what} of {named}: {said}", **place)
        if answer.status == 409 and subject is not None:
            raise _incompatible(said, subject)
        if code == 42201:
            raise InvalidSchemaError(f"cannot {what} of subject {subject!r}: {said}", path=_path_in(said), **place)
        if answer.status in (401, 403):
            said += "; set basic.auth.user.info or bearer.auth.token"
        named = "" if subject is None else f" of subject {subject!r}"
        raise RegistryRefusedError(
            f"cannot {what}{named}: {said} (HTTP status {answer.status}, code {code})",
            status=answer.status,
            error_code=code,
            **place,
        )


_registries: weakref.WeakSet[SchemaRegistry] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_registries):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _unpickled(config: str | Sequence[str] | Mapping[str, Any] | None, settings: Any) -> SchemaRegistry:
    return SchemaRegistry(config, **settings)


# --- documents of the REST API ---------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _query(more: Mapping[str, str] | None = None, **flags: bool) -> str:
    values = dict(more or {}) | {name: "true" for name, value in flags.items() if value}
    return f"?{urlencode(values)}" if values else ""


def _format(serialized: bool) -> dict[str, str]:
    return {"format": "serialized"} if serialized else {}


def _body(schema: Schema) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": schema.text}
    if schema.type is not SchemaType.AVRO:
        document["schemaType"] = schema.type.value
    if schema.references:
        document["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
        ]
    return document


def _schema(document: Any) -> Schema:
    try:
        references = tuple(
            Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
            for each in document.get("references") or ()
        )
        text = document["schema"]
        if not isinstance(text, str):
            raise TypeError("schema is not a string")
        return Schema(text, SchemaType(document.get("schemaType") or "AVRO"), references)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RegistryRefusedError(f"the registry's answer is not a schema ({error!r:.80}): {document!r:.80}") from None


def _registered(document: Any) -> RegisteredSchema:
    schema = _schema(document)
    try:
        return RegisteredSchema(str(document["subject"]), int(document["version"]), int(document["id"]), schema)
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryRefusedError(
            f"the registry's answer describes no version of a subject ({error!r:.80}): {document!r:.80}"
        ) from None


def _list(document: Any, kind: type) -> list[Any]:
    if not isinstance(document, list) or not all(isinstance(each, kind) for each in document):
        raise RegistryRefusedError(f"the registry's answer is not a list of {kind.__name__}: {document!r:.80}")
    return document


def _error_code(answer: Answer) -> int:
    code = answer.document.get("error_code") if isinstance(answer.document, dict) else None
    return code if isinstance(code, int) else 0


_OLD_VERSION = re.compile(r"oldSchemaVersion:\s*(\d+)")
_REASON = re.compile(r"\{errorType:'([^']*)', description:'(.*?)', additionalInfo:'(.*?)'\}", re.DOTALL)
_CONTEXT = re.compile(r"\{(oldSchemaVersion|oldSchema|validateFields|compatibility):")
_PATH = re.compile(r"path '([^']*)'")


def _path_in(text: str) -> str:
    found = _PATH.search(text)
    return found[1] if found else ""


def _reasons(messages: list[str]) -> list[str]:
    """The reasons of an incompatibility, as texts. The registry's list has items of the form ``{errorType:'...',
    description:'...', additionalInfo:'...'}``, and other items with the old schema and its version."""
    found = []
    for message in messages:
        parts = _REASON.findall(message[:1_000_000])
        found += [f"{kind}: {description}{f' ({more})' if more else ''}" for kind, description, more in parts]
        if not parts and not _CONTEXT.match(message):
            found.append(message)
    return found


def _incompatible(said: str, subject: str) -> IncompatibleSchemaError:
    version = _OLD_VERSION.search(said)
    reasons = tuple(_reasons([said]))
    number = None if version is None else int(version[1])
    against = "an earlier version" if number is None else f"version {number}"
    return IncompatibleSchemaError(
        f"the schema is incompatible with {against} of subject {subject!r}: {'; '.join(reasons)}; change the "
        "schema, or the subject's level (`headrace schemas check` shows the reasons)",
        reasons=reasons,
        subject=subject,
        version=number,
        path=_path_in(said),
    )
