"""The paths of the REST API, and their handlers.

A replica answers reads from the records that it has applied. Writes go to the writer (:mod:`.forwarding`). The
registration of a schema that the subject already has is a read, so it needs no writer.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version as version_of_package
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from headrace_core.metrics.calls import CallTimes
from headrace_core.node.http_bodies import expected
from headrace_core.node.http_connections import HttpConnections

from ..compat import Level
from ..schemas import InvalidSchemaError, Parsed, SchemaType
from ..schemas.model import SCHEMA_BYTES_MAX
from ..state import (
    LATEST,
    Config,
    Deciding,
    Decision,
    Image,
    Mode,
    RegistryError,
    Rules,
    StoredSchema,
    Submission,
    Version,
    errors,
)
from ..state.decisions import NotQuickError
from ..state.parsing import resolved_characters
from . import answers, requests
from .forwarding import (
    DELETE_CONFIG,
    DELETE_MODE,
    DELETE_SUBJECT,
    DELETE_VERSION,
    REGISTER,
    SET_CONFIG,
    SET_MODE,
    Writing,
)
from .http import Gate, Handler, PlainError, Raw, endpoint
from .requests import flag

if TYPE_CHECKING:
    from ..registry import Registry
    from ..settings import RegistrySettings

T = TypeVar("T")

#: Confluent's defaults of subject.search.max.limit and schema.search.max.limit.
SUBJECTS_MAX, SCHEMAS_MAX = 20_000, 1_000
#: Maximum number of characters of all schemas in one answer; a longer page is refused.
PAGE_CHARACTERS_MAX = 8 << 20
#: A schema with more characters than this number, references included, is parsed in a thread, not in the event loop.
LONG_SCHEMA = 16 * 1024
#: A schema is compared with earlier versions in a thread if the schema and the versions together have more characters
#: than this number. The schemas that the versions reference count.
LONG_COMPARISON = 128 * 1024
#: Maximum seconds that the work on a long schema waits for the long schemas of other requests.
TURN_S = 10.0


#: The aiohttp AppKey under which an application stores its connection limits; the application's listeners read them.
CONNECTIONS = web.AppKey("connections", HttpConnections)


def application(registry: Registry, settings: RegistrySettings, calls: CallTimes | None = None) -> web.Application:
    """The aiohttp application of a replica. ``calls``: gets the times of requests, for the metrics."""
    api = Api(registry, settings)
    api.gate.calls = calls
    api.gate.guard = settings.guard
    app = web.Application(middlewares=[api.gate.middleware])
    app[CONNECTIONS] = api.gate.connections
    app.cleanup_ctx.append(api.running)
    for method, path, handler in api.routes():
        # A client may name the default context in the path.
        for place, each in ((path, handler), (f"/contexts/{{context}}{path}", _in_default_context(handler))):
            # aiohttp's default pattern for a part of a path excludes braces.
            place = re.sub(r"\{(\w+)\}", r"{\1:[^/]+}", place)
            if method == "GET":
                app.router.add_get(place, endpoint(each))  # and HEAD
            else:
                app.router.add_route(method, place, endpoint(each), expect_handler=expected)
    app.router.add_get("/", endpoint(api.root))
    app.router.add_get("/contexts", endpoint(api.contexts))
    app.router.add_get("/v1/metadata/version", endpoint(api.version))
    return app


class Api:
    """The handlers of one replica."""

    def __init__(self, registry: Registry, settings: RegistrySettings) -> None:
        self._registry = registry
        rules = Rules(Level(settings.compatibility_level.upper()), settings.mode_mutability)
        self._deciding = Deciding.of_threads(rules, threading.Lock())
        self._quick = self._deciding.quick()
        self._writing = Writing(registry, settings.write_timeout_s, settings.guard.tls)
        self._thread = ThreadPoolExecutor(1, "registry-parser")
        self._turn = asyncio.Lock()  # lock of the request whose work runs in the thread
        self.gate = Gate(lambda: registry.is_ready, registry.catch_up, settings.addresses)

    @property
    def _image(self) -> Image:
        return self._registry.image

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        await self._writing.start()
        yield
        await self._writing.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def routes(self) -> Iterable[tuple[str, str, Handler]]:
        yield "GET", "/subjects", self.list_subjects
        yield "POST", "/subjects/{subject}", self.look_up
        yield "DELETE", "/subjects/{subject}", self.delete_subject
        yield "GET", "/subjects/{subject}/versions", self.list_versions
        yield "POST", "/subjects/{subject}/versions", self.register
        yield "GET", "/subjects/{subject}/versions/{version}", self.get_version
        yield "DELETE", "/subjects/{subject}/versions/{version}", self.delete_version
        yield "GET", "/subjects/{subject}/versions/{version}/schema", self.get_version_text
        yield "GET", "/subjects/{subject}/versions/{version}/referencedby", self.get_referenced_by
        yield "GET", "/schemas", self.list_schemas
        yield "GET", "/schemas/types", self.list_types
        yield "GET", "/schemas/ids/{id}", self.get_schema
        yield "GET", "/schemas/ids/{id}/schema", self.get_schema_text
        yield "GET", "/schemas/ids/{id}/subjects", self.list_subjects_of_schema
        yield "GET", "/schemas/ids/{id}/versions", self.list_versions_of_schema
        yield "POST", "/compatibility/subjects/{subject}/versions", self.check_against_subject
        yield "POST", "/compatibility/subjects/{subject}/versions/{version}", self.check_against_version
        for path in ("/config", "/config/{subject}"):
            yield "GET", path, self.get_config
            yield "PUT", path, self.set_config
            yield "DELETE", path, self.delete_config
        for path in ("/mode", "/mode/{subject}"):
            yield "GET", path, self.get_mode
            yield "PUT", path, self.set_mode
            yield "DELETE", path, self.delete_mode

    # --- the registry ------------------------------------------------------------------------------------------------

    async def root(self, request: web.Request) -> object:
        return {}

    async def contexts(self, request: web.Request) -> object:
        return ["."]

    async def version(self, request: web.Request) -> object:
        return {"version": version_of_package("headrace-registry"), "commitId": ""}

    # --- subjects ----------------------------------------------------------------------------------------------------

    async def list_subjects(self, request: web.Request) -> object:
        deleted, deleted_only = flag(request, "deleted"), flag(request, "deletedOnly")
        prefix = requests.prefix_of(request)
        offset, limit = requests.page(request, SUBJECTS_MAX, SUBJECTS_MAX)
        image = self._image
        found: list[str] = []
        for subject in () if prefix is None else image.subjects(prefix):
            is_live = image.has_subject(subject)
            if not is_live if deleted_only else deleted or is_live:
                found.append(subject)
                if len(found) == offset + limit:
                    break
        return found[offset:]

    async def list_versions(self, request: web.Request) -> object:
        subject = requests.subject_of(request)
        deleted, deleted_only = flag(request, "deleted"), flag(request, "deletedOnly")
        offset, limit = requests.page(request, SUBJECTS_MAX, SUBJECTS_MAX)
        if not self._image.has_subject(subject, deleted=deleted or deleted_only):
            raise errors.subject_not_found(subject)
        numbers = [
            each.number
            for each in self._image.versions(subject)
            if (each.is_deleted if deleted_only else deleted or not each.is_deleted)
        ]
        return numbers[offset : offset + limit]

    async def get_version(self, request: web.Request) -> object:
        found = self._version(request, deleted=flag(request, "deleted"))
        return answers.version(found, await self._text(request, found.stored))

    async def get_version_text(self, request: web.Request) -> object:
        found = self._version(request, deleted=flag(request, "deleted"))
        return Raw(await self._text(request, found.stored))

    async def get_referenced_by(self, request: web.Request) -> object:
        found = self._version(request, deleted=True)
        return self._image.referenced_by(found.subject, found.number)

    async def look_up(self, request: web.Request) -> object:
        subject = requests.subject_of(request)
        submitted = requests.submission_of(subject, requests.fields_of(await self.gate.body(request)))
        deleted = flag(request, "deleted")
        found = None
        async with self._prepared(submitted, is_new=False, normalize=True):
            for normalize in (True,) if self._normalizes(request, self._image, subject) else (False, True):
                if found is None:
                    found = await self._looked_up(submitted, normalize=normalize, deleted=deleted)
        if found is None:
            if self._image.has_subject(subject, deleted=deleted):
                raise errors.schema_not_found()
            raise errors.subject_not_found(subject)
        return answers.version(found, await self._text(request, found.stored))

    async def register(self, request: web.Request) -> object:
        body = await self.gate.body(request)
        submitted = requests.submission_of(requests.checked_subject(request), requests.fields_of(body))
        if len(submitted.schema.text.encode()) > SCHEMA_BYTES_MAX:
            raise errors.schema_too_large()

        def decide(image: Image) -> Decision[int]:
            return self._deciding.register(
                image, submitted, normalize=self._normalizes(request, image, submitted.subject)
            )

        async with AsyncExitStack() as prepared:
            known = await self._known(request, submitted, prepared)
            if known is not None:
                return {"id": known.stored.id}
            return await self._writing.write(request, body, REGISTER, decide, lambda schema_id: {"id": schema_id})

    async def _known(self, request: web.Request, submitted: Submission, prepared: AsyncExitStack) -> Version | None:
        """The version with which the subject already has the submitted schema, so that a registration would change
        nothing; None if there is no such version. ``prepared`` keeps the parsed schema for the decision. Raises the
        RegistryError of an invalid schema."""
        normalize = self._normalizes(request, self._image, submitted.subject)
        try:
            await prepared.enter_async_context(self._prepared(submitted, is_new=False, normalize=normalize))
            if submitted.version == 0:
                known = await self._looked_up(submitted, normalize=normalize, deleted=False)
                if known is not None and submitted.schema_id in (-1, known.stored.id):
                    return known
            await prepared.enter_async_context(self._prepared(submitted, is_new=True, normalize=normalize))
            if self._registry.is_writer and self._image.mode_in_scope(submitted.subject) is not Mode.IMPORT:
                await self._prepare_comparison(submitted)
        except RegistryError:
            # Only the writer knows the newest versions, so only the writer knows whether a reference is missing.
            if self._registry.is_writer or not submitted.schema.references:
                raise
        return None

    async def delete_version(self, request: web.Request) -> object:
        subject, number = requests.subject_of(request), requests.version_of(request)
        name, permanent = request.match_info["version"], flag(request, "permanent")
        return await self._writing.write(
            request,
            b"",
            DELETE_VERSION,
            lambda image: self._deciding.delete_version(image, subject, number, name, permanent=permanent),
            lambda deleted: deleted,
        )

    async def delete_subject(self, request: web.Request) -> object:
        subject, permanent = requests.subject_of(request), flag(request, "permanent")
        return await self._writing.write(
            request,
            b"",
            DELETE_SUBJECT,
            lambda image: self._deciding.delete_subject(image, subject, permanent=permanent),
            lambda versions: versions,
        )

    # --- schemas -----------------------------------------------------------------------------------------------------

    async def list_schemas(self, request: web.Request) -> object:
        deleted, latest_only = flag(request, "deleted"), flag(request, "latestOnly")
        prefix = requests.prefix_of(request)
        offset, limit = requests.page(request, SCHEMAS_MAX, SCHEMAS_MAX)
        found: list[dict[str, Any]] = []
        characters = 0
        for subject in () if prefix is None else self._image.subjects(prefix):
            versions = [each for each in self._image.versions(subject) if deleted or not each.is_deleted]
            for each in versions[-1:] if latest_only else versions:
                if offset > 0:
                    offset -= 1
                    continue
                if len(found) == limit:
                    return found
                characters += len(each.stored.schema.text)
                if found and characters > PAGE_CHARACTERS_MAX:
                    raise errors.page_too_large(len(found), PAGE_CHARACTERS_MAX)
                found.append(answers.version(each))
        return found

    async def list_types(self, request: web.Request) -> object:
        return [SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO]  # Confluent's order

    async def get_schema(self, request: web.Request) -> object:
        found = self._schema(request)
        max_id = self._image.max_id if flag(request, "fetchMaxId") else None
        return answers.schema(found, await self._text(request, found), max_id)

    async def get_schema_text(self, request: web.Request) -> object:
        return Raw(await self._text(request, self._schema(request)))

    async def list_subjects_of_schema(self, request: web.Request) -> object:
        return [each.subject for each in self._uses(request)]

    async def list_versions_of_schema(self, request: web.Request) -> object:
        return [answers.subject_version(each) for each in self._uses(request)]

    # --- compatibility -----------------------------------------------------------------------------------------------

    async def check_against_version(self, request: web.Request) -> object:
        subject, number = requests.subject_of(request), requests.version_of(request)
        fields = requests.fields_of(await self.gate.body(request))
        version = self._image.version(subject, number)
        if version is None and number != LATEST:
            raise errors.version_not_found(number)
        return await self._check(request, subject, fields, [] if version is None else [version])

    async def check_against_subject(self, request: web.Request) -> object:
        subject = requests.subject_of(request)
        fields = requests.fields_of(await self.gate.body(request))
        versions = [each for each in self._image.versions(subject) if not each.is_deleted]
        return await self._check(request, subject, fields, versions)

    async def _check(
        self, request: web.Request, subject: str, fields: dict[str, Any], earlier: list[Version]
    ) -> object:
        verbose = flag(request, "verbose")
        try:
            sent = requests.submission_of(subject, fields)
            submitted = Submission(subject, sent.schema)
            async with self._prepared(submitted, is_new=True):
                messages = await self._compared(submitted, earlier)
        except RegistryError as error:
            if not verbose or error.code != 42201:
                raise
            messages = [error.message]
        return answers.compatibility(messages, verbose=verbose)

    # --- settings ----------------------------------------------------------------------------------------------------

    async def get_config(self, request: web.Request) -> object:
        subject = _subject_or_none(request)
        default = self._deciding.rules.default_level
        if subject is None or flag(request, "defaultToGlobal"):
            return self._image.config_in_scope(subject, default).fields()
        found = self._image.config(subject)
        if found is None:
            raise errors.compatibility_not_configured(subject)
        return found.fields()

    async def set_config(self, request: web.Request) -> object:
        body = await self.gate.body(request)
        wanted = requests.config_of(requests.fields_of(body))
        subject = _checked_subject_or_none(request)
        return await self._writing.write(
            request,
            body,
            SET_CONFIG,
            lambda image: self._deciding.set_config(image, subject, wanted.config),
            lambda _: wanted.sent,
        )

    async def delete_config(self, request: web.Request) -> object:
        subject = _subject_or_none(request)
        return await self._writing.write(
            request, b"", DELETE_CONFIG, lambda image: self._deciding.delete_config(image, subject), Config.fields
        )

    async def get_mode(self, request: web.Request) -> object:
        subject = _subject_or_none(request)
        if subject is None or flag(request, "defaultToGlobal"):
            return {"mode": self._image.mode_in_scope(subject)}
        found = self._image.mode(subject)
        if found is None:
            raise errors.mode_not_configured(subject)
        return {"mode": found}

    async def set_mode(self, request: web.Request) -> object:
        subject, force = _checked_subject_or_none(request), flag(request, "force")
        body = await self.gate.body(request)
        wanted = requests.mode_of(requests.fields_of(body))
        return await self._writing.write(
            request,
            body,
            SET_MODE,
            lambda image: self._deciding.set_mode(image, subject, wanted.mode, force=force),
            lambda _: wanted.sent,
        )

    async def delete_mode(self, request: web.Request) -> object:
        subject = _subject_or_none(request)

        def shape(old: Mode) -> object:
            return {"mode": old}

        return await self._writing.write(
            request, b"", DELETE_MODE, lambda image: self._deciding.delete_mode(image, subject), shape
        )

    # --- shared ------------------------------------------------------------------------------------------------------

    def _version(self, request: web.Request, *, deleted: bool) -> Version:
        """Return the version that the path names. Raises RegistryError 40401 and 40402."""
        subject, number = requests.subject_of(request), requests.version_of(request)
        found = self._image.version(subject, number, deleted=deleted)
        if found is None:
            if self._image.has_subject(subject, deleted=deleted):
                raise errors.version_not_found(number)
            raise errors.subject_not_found(subject)
        return found

    def _schema(self, request: web.Request) -> StoredSchema:
        """Return the schema whose id is in the path. Raises RegistryError 40403."""
        schema_id = requests.id_of(request)
        found = self._image.schema(schema_id)
        if found is None:
            raise errors.schema_not_found(schema_id)
        return found

    def _uses(self, request: web.Request) -> list[Version]:
        schema_id = requests.id_of(request)
        if self._image.schema(schema_id) is None:
            raise errors.schema_not_found()
        return self._image.uses(schema_id, deleted=flag(request, "deleted"))

    def _normalizes(self, request: web.Request, image: Image, subject: str) -> bool:
        config = image.config_in_scope(subject, self._deciding.rules.default_level)
        return flag(request, "normalize") or bool(config.normalize)

    async def _text(self, request: web.Request, stored: StoredSchema) -> str:
        """Return the text of a schema in the format that the query names. As in Confluent's registry, an unknown format
        means the canonical text."""
        wanted = request.query.get("format", "").strip()
        if not wanted:
            return stored.schema.text
        submitted = Submission("", stored.schema, 0, stored.id)
        try:
            async with self._prepared(submitted, is_new=False) as long:
                if long is not None:
                    return await self._in_thread(long.formatted, wanted)
                return self._deciding.parser.parse_submitted(self._image, submitted, is_new=False).formatted(wanted)
        except InvalidSchemaError as error:
            raise errors.invalid_schema(f"Invalid schema, details: {error.message}") from None

    @asynccontextmanager
    async def _prepared(
        self, submitted: Submission, *, is_new: bool, normalize: bool = False
    ) -> AsyncIterator[Parsed | None]:
        """Parse a long schema in a thread. Until the context ends, decisions find the parsed schema. ``normalize``:
        also compute the normalized text in the thread. Yields None for a short schema, which decisions parse
        themselves."""
        parser = self._deciding.parser
        job = parser.job(self._image, submitted, is_new=is_new) if submitted.schema.text.strip() else None
        if job is None or job.characters <= LONG_SCHEMA:
            yield None
            return
        kept = parser.kept(job)

        def parse() -> Parsed:
            parsed = kept or parser.keep(job, job.run())
            if normalize:
                with suppress(InvalidSchemaError):  # the decision refuses the schema
                    _ = parsed.normalized
            return parsed

        if kept is None or (normalize and "normalized" not in vars(kept)):
            yield await self._in_thread(parse)
        else:
            yield kept

    async def _looked_up(self, submitted: Submission, *, normalize: bool, deleted: bool) -> Version | None:
        def look_up(image: Image) -> Version | None:
            return self._deciding.look_up(image, submitted, normalize=normalize, deleted=deleted)

        referring = []  # the versions that a look-up parses: the client may have copied their references into its text
        if submitted.schema.type is SchemaType.AVRO and not submitted.schema.references:
            referring = [each for each in self._image.versions(submitted.subject) if each.stored.schema.references]
        return await self._run(look_up, submitted, referring)

    async def _compared(self, submitted: Submission, earlier: Sequence[Version]) -> list[str]:
        """Compare a schema with earlier versions: in the event loop if this is quick, otherwise in a thread."""
        if not self._is_long(submitted, earlier):
            with suppress(NotQuickError):
                return self._quick.compatibility(self._image, submitted, earlier)
        async with self._in_turn():
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._deciding.compatibility, self._image.draft(), submitted, earlier
            )

    async def _prepare_comparison(self, submitted: Submission) -> None:
        """Compare a schema with earlier versions; the decision then finds the results in the cache."""
        live = [each for each in self._image.versions(submitted.subject) if not each.is_deleted]
        if submitted.schema.text.strip():
            await self._compared(submitted, live)

    async def _run(self, read: Callable[[Image], T], submitted: Submission, versions: Sequence[Version]) -> T:
        """Call ``read`` with the image; if the schemas to parse are long, call it in a thread with a copy of the image.
        Raises PlainError 429 (_in_turn)."""
        if not self._is_long(submitted, versions):
            return read(self._image)
        async with self._in_turn():  # the image is copied only now, because it may have changed in the meantime
            return await asyncio.get_running_loop().run_in_executor(self._thread, read, self._image.draft())

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Call ``work`` in the thread. Raises PlainError 429 (_in_turn)."""
        async with self._in_turn():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Have the thread for one request. Raises PlainError 429 if the long schemas of other requests keep the thread
        busy."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            raise PlainError(
                429, "The registry is working on long schemas of other requests; send the request again later"
            ) from None
        try:
            yield
        finally:
            self._turn.release()

    def _is_long(self, submitted: Submission, versions: Iterable[Version]) -> bool:
        """Whether a schema and earlier versions are too long for a comparison in the event loop. The schemas that the
        versions reference count, because a comparison parses them too; the submitted schema is parsed before."""
        left = LONG_COMPARISON - len(submitted.schema.text)
        for version in versions:
            if left < 0:
                break
            left -= resolved_characters(self._image, version.stored.schema, left)
        return left < 0


def _in_default_context(handler: Handler) -> Handler:
    async def checked(request: web.Request) -> object:
        requests.check_context(request)
        return await handler(request)

    return checked


def _subject_or_none(request: web.Request) -> str | None:
    """The subject in the path; None for the whole registry."""
    return requests.subject_of(request) or None if "subject" in request.match_info else None


def _checked_subject_or_none(request: web.Request) -> str | None:
    return requests.checked_subject(request) or None if "subject" in request.match_info else None
