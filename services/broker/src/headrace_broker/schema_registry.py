"""Asks the schema registry for the schema ids of appends to topics with ``value.schema.validation``.

An append whose ids are known needs no request and does not wait. An append with an unknown id waits for the registry's
answer, at most WAIT_S seconds. Later appends to the same partition also wait, to keep the order. Appends to other
partitions do not wait. When the registry does not answer, appends with unknown ids get a retriable error without
waiting. While appends with unknown ids arrive, the broker asks again in the background, at most once in RETRY_S
seconds. Meanwhile, appends with known ids are still accepted.

Requests are ``GET /schemas/ids/ID/subjects`` of Confluent's REST API. Requests are rare, because the broker caches the
answers, so each request opens a new connection.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace_core.clock import Clock
from headrace_core.errors import InvalidConfigError, ServerBusyError, ServerShuttingDownError
from headrace_core.types import TopicPartition

from .partition.schemas import KnownSchemas, Need, SchemaCheck, judge

logger = logging.getLogger("headrace.broker")

REQUEST_S = 2.0  #: Timeout in seconds of a request to one address of the registry.
WAIT_S = 5.0  #: Longest time in seconds that an append waits for the registry.
RETRY_S = 1.0  #: Seconds for which the broker sends no request after no address of the registry has answered.
REQUESTS_MAX = 8  #: Maximum number of concurrent requests to the registry.
#: Maximum number of an append's unknown ids that are looked up in one round; the append is then checked again.
IDS_AT_ONCE_MAX = 32
QUESTIONS_MAX = 1_000  #: Maximum number of ids that wait for an answer.
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class RegistryUnavailableError(Exception):
    """An address of the registry gave no usable answer; the text says why."""


class RegistryAddress(NamedTuple):
    """``authorization``: the value of the HTTP header; None: no authentication."""

    url: str
    authorization: str | None


#: Asks one address of the registry for the subjects of a schema id. The result is None if the registry does not have
#: the id. Raises RegistryUnavailableError.
Ask = Callable[[RegistryAddress, int], Awaitable[list[str] | None]]


class SchemaRegistry:
    """The schema registry, for the partitions that this broker leads. ``urls`` returns the registry's addresses, which
    may change; the default is no registry. Call all methods in the event loop."""

    def __init__(
        self,
        clock: Clock,
        urls: Callable[[], Sequence[str]] = tuple,
        *,
        cache_size_max: int = 10_000,
        missing_ttl_s: int = 5,
        user_info: str | None = None,
        ask: Ask | None = None,
    ) -> None:
        self._urls = urls
        self._clock = clock
        self._known = KnownSchemas(cache_size_max, missing_ttl_s * 1_000)
        self._authorization = None if user_info is None else _basic(user_info)
        self._ask = ask or ask_subjects
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._questions: dict[Need, asyncio.Task[None]] = {}
        self._waits: set[asyncio.Task[None]] = set()
        self._first = 0  # index of the address that answered last
        #: The reason why the registry did not answer; None if it answered the last request.
        self._failure: str | None = None
        self._retry_ms = 0.0
        self._is_closed = False

    def resize(self, cache_size_max: int, missing_ttl_s: int) -> None:
        self._known.resize(cache_size_max, missing_ttl_s * 1_000)

    def accepts(self, check: SchemaCheck, partition: TopicPartition, answered: Callable[[], None]) -> bool:
        """Whether all ids of the append are known and accepted. If the result is False, the broker asks the registry
        and calls ``answered`` later, once; then call ``accepts`` again. Raises InvalidRecordError (with the refused
        records), ServerBusyError (the registry does not answer), InvalidConfigError (this broker has no registry),
        ServerShuttingDownError."""
        now_ms = self._clock.monotonic_ms()
        needs = judge(check, self._known, partition, now_ms)
        if not needs:
            return True
        if self._is_closed:
            raise ServerShuttingDownError(f"{partition}: the broker is shutting down")
        if not self._urls():
            raise InvalidConfigError(
                f"{partition}: the topic has schema validation, but this broker has no schema registry: set "
                "confluent.schema.registry.url on all brokers"
            )
        if self._failure is not None:
            if now_ms >= self._retry_ms:
                self._retry_ms = now_ms + RETRY_S * 1_000
                self._question(needs[0])
            raise self._unavailable(needs[0], partition, self._failure)
        if check.asked_ms is None:
            check.asked_ms = now_ms
        left_ms = check.asked_ms + WAIT_S * 1_000 - now_ms
        if left_ms <= 0:
            raise self._unavailable(needs[0], partition, f"the registry gave no answer within {WAIT_S:g} s")
        if len(self._questions) >= QUESTIONS_MAX:
            raise self._unavailable(
                needs[0], partition, f"{len(self._questions)} other schema ids wait for an answer of the registry"
            )
        questions = [self._question(need) for need in needs[:IDS_AT_ONCE_MAX]]
        waiting = asyncio.create_task(_wait(questions, left_ms), name="schema ids")
        self._waits.add(waiting)
        waiting.add_done_callback(self._waits.discard)
        # Call ``answered`` in a callback, which runs even if ``close`` cancels the task before its first step.
        waiting.add_done_callback(lambda _: answered())
        return False

    async def close(self) -> None:
        """End all requests, because the broker is shutting down. Idempotent."""
        self._is_closed = True
        tasks = [*self._questions.values(), *self._waits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _unavailable(self, need: Need, partition: TopicPartition, reason: str) -> ServerBusyError:
        return ServerBusyError(
            f"{partition}: cannot check schema id {need.schema_id}, because the schema registry does not answer "
            f"({reason}): nothing was written; retry"
        )

    def _question(self, need: Need) -> asyncio.Task[None]:
        found = self._questions.get(need)
        if found is None:
            found = self._questions[need] = asyncio.create_task(self._answer(need), name=f"schema id {need.schema_id}")
            found.add_done_callback(lambda _: self._questions.pop(need, None))
        return found

    async def _answer(self, need: Need) -> None:
        """Ask the registry's addresses in turn, beginning with the address that answered last."""
        async with self._room:
            reasons: list[str] = []
            urls = self._urls()
            for step in range(len(urls)):
                at = (self._first + step) % len(urls)
                try:
                    async with asyncio.timeout(REQUEST_S):
                        subjects = await self._ask(RegistryAddress(urls[at], self._authorization), need.schema_id)
                except TimeoutError:
                    reasons.append(f"{urls[at]}: no answer within {REQUEST_S:g} s")
                except RegistryUnavailableError as error:
                    reasons.append(f"{urls[at]}: {error}")
                except Exception as error:
                    # Record every error as a failure: without an answer or a failure, waiting appends would ask again
                    # at once, in a busy loop.
                    logger.exception("asking the schema registry failed unexpectedly")
                    reasons.append(f"{urls[at]}: {type(error).__name__}: {error}")
                else:
                    self._first = at
                    self._known.answered(need, subjects, self._clock.monotonic_ms())
                    if self._failure is not None:
                        self._failure = None
                        logger.info("the schema registry answers again (%s)", urls[at])
                    return
            if self._failure is None:
                logger.warning(
                    "the schema registry does not answer, so batches with unknown schema ids get a retriable error: %s",
                    "; ".join(reasons),
                )
            self._failure = "; ".join(reasons)
            self._retry_ms = self._clock.monotonic_ms() + RETRY_S * 1_000


async def _wait(questions: Sequence[asyncio.Task[None]], wait_ms: float) -> None:
    await asyncio.wait(questions, timeout=wait_ms / 1_000)


def _basic(user_info: str) -> str:
    user, colon, _ = user_info.partition(":")
    if not colon or not user:
        raise InvalidConfigError("confluent.basic.auth.user.info: must be user:password")
    return "Basic " + base64.b64encode(user_info.encode()).decode()


async def ask_subjects(address: RegistryAddress, schema_id: int) -> list[str] | None:
    """Ask one address for the subjects of a schema id; see ``Ask``. The caller limits the duration of the request."""
    parts = urlsplit(address.url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    host = parts.hostname or ""
    lines = [
        f"GET {parts.path.rstrip('/')}/schemas/ids/{schema_id}/subjects HTTP/1.1",
        f"Host: {parts.netloc}",
        "Accept: application/vnd.schemaregistry.v1+json, application/json",
        "User-Agent: headrace-broker",
        "Connection: close",
    ]
    if address.authorization is not None:
        lines.append(f"Authorization: {address.authorization}")
    writer: asyncio.StreamWriter | None = None
    try:
        context = await asyncio.to_thread(ssl.create_default_context) if is_tls else None
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        raw = bytearray()
        while chunk := await reader.read(65_536):
            raw += chunk
            if len(raw) > ANSWER_BYTES_MAX:
                raise RegistryUnavailableError(f"the registry's answer has more than {ANSWER_BYTES_MAX} bytes")
    # ssl.SSLError and socket.gaierror are OSErrors too; an invalid host name raises UnicodeError
    except (OSError, UnicodeError) as error:
        raise RegistryUnavailableError(str(error) or type(error).__name__) from error
    finally:
        if writer is not None:
            writer.transport.abort()
    return subjects_in(bytes(raw))


class _Answered:
    """A socket for ``http.client``, whose whole answer was already read."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def subjects_in(raw: bytes) -> list[str] | None:
    """Read a whole HTTP answer; see ``Ask``."""
    answered: Any = _Answered(raw)
    response = http.client.HTTPResponse(answered)
    try:
        response.begin()
        document = json.loads(response.read())
    except (http.client.HTTPException, OSError, ValueError, RecursionError) as error:
        raise RegistryUnavailableError(
            f"the registry's answer is not HTTP with JSON ({type(error).__name__})"
        ) from error
    if response.status == 404 and isinstance(document, dict) and document.get("error_code") == 40403:
        return None
    if response.status == 200 and isinstance(document, list) and all(isinstance(each, str) for each in document):
        return document
    said = document.get("message") if isinstance(document, dict) else None
    raise RegistryUnavailableError(
        f"the registry answered with HTTP status {response.status}{f': {str(said)[:200]}' if said else ''}"
    )
