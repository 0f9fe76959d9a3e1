"""Export of a node's spans to a collector, by OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/).

One thread sends the spans, from a queue of at most QUEUE_MAX spans. With a slow or unreachable collector the node loses
only spans: it drops the spans that do not fit into the queue. The node logs one line when sending begins to fail, and
one line when sending works again. OpenTelemetry's own exporter and processor repeat their warnings, and may delay the
end of a process for minutes.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from importlib.metadata import version
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

logger = logging.getLogger("headrace.traces")

QUEUE_MAX = 2_048  #: Maximum number of spans that wait for the collector; later spans are dropped.
BATCH_MAX = 512  #: Maximum number of spans in one request.
PAUSE_S = 1.0  #: Seconds that a span waits for further spans before it is sent.


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error, because it would send the configured headers to another host."""

    def redirect_request(self, *args: object) -> None:
        return None


class _Deadline:
    """Ends the connection of a request after ``limit_s`` seconds: the timeout of a socket applies to each read, and a
    collector may send single bytes slowly. The object serves one request at a time."""

    def __init__(self, limit_s: float) -> None:
        self.is_over = False
        self._limit_s = limit_s
        self._socket: socket.socket | None = None

    @contextlib.contextmanager
    def of_request(self) -> Iterator[None]:
        self.is_over, self._socket = False, None
        timer = threading.Timer(self._limit_s, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._socket = None

    def connection(self, kind: type[HTTPConnection]) -> Callable[..., HTTPConnection]:
        """Makes connections of ``kind`` for urllib; each socket is closed at the end of its request."""

        def make(host: str, **options: Any) -> HTTPConnection:
            made = kind(host, **options)
            create = made._create_connection  # type: ignore[attr-defined]

            def watched(*arguments: Any) -> socket.socket:
                self._socket = create(*arguments)
                return self._socket

            made._create_connection = watched  # type: ignore[attr-defined]
            return made

        return make

    def _end(self) -> None:
        self.is_over = True
        made = self._socket
        if made is not None:
            with contextlib.suppress(OSError):  # it has ended
                made.shutdown(socket.SHUT_RDWR)


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    class Plain(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> HTTPResponse:
            return self.do_open(deadline.connection(HTTPConnection), request)

    class Encrypted(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> HTTPResponse:
            return self.do_open(deadline.connection(HTTPSConnection), request)

    return urllib.request.build_opener(_NoRedirects, Plain, Encrypted)


class SpanExport(SpanProcessor):
    """Sends ended spans to ``url``. ``timeout_s``: the time limit of one request, and of ``shutdown``."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._deadline = _Deadline(timeout_s)
        self._opener = _opener(self._deadline)
        self._headers = {"Content-Type": "application/x-protobuf", **headers}
        self._queue: deque[ReadableSpan] = deque()
        self._wake = threading.Event()
        self._is_over = False
        self._is_failing = False
        self.sent = 0  #: Number of spans that the collector has accepted.
        self.dropped = 0  #: Number of spans that were not sent, or that the collector did not accept.
        self._thread = threading.Thread(target=self._run, name="headrace-traces", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        if len(self._queue) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._queue.append(span)
        if len(self._queue) >= BATCH_MAX:
            self._wake.set()

    def shutdown(self) -> None:
        """Send the queued spans, within the time limit of one request."""
        self._is_over = True
        self._wake.set()
        self._thread.join(self._timeout_s)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return not self._queue

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(PAUSE_S)
            self._wake.clear()
            is_last = self._is_over  # Read this first: spans from before the shutdown are then in the queue.
            self._send_all()

    def _send_all(self) -> None:
        """Send the queued spans, up to the first failure."""
        while self._queue:
            spans = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
            error = self._send(spans)
            if error is None:
                self.sent += len(spans)
                if self._is_failing:
                    self._is_failing = False
                    logger.info("the trace collector %s accepts spans again", self._url)
                continue
            self.dropped += len(spans)
            if not self._is_failing:
                self._is_failing = True
                logger.warning(
                    "cannot send spans to the trace collector %s: %s; the node drops spans until the collector accepts "
                    "them again",
                    self._url,
                    error,
                )
            return

    def _send(self, spans: Sequence[ReadableSpan]) -> str | None:
        """Send one request; returns the reason of a failure."""
        with self._deadline.of_request():
            error = self._post(spans)
        return f"no answer within {self._timeout_s:g} s" if self._deadline.is_over else error

    def _post(self, spans: Sequence[ReadableSpan]) -> str | None:
        try:
            body = encode_spans(spans).SerializeToString()
            request = urllib.request.Request(self._url, body, self._headers, method="POST")
            # Do not read the body of the answer, which may be endless; the status is enough.
            self._opener.open(request, timeout=self._timeout_s).close()
        except urllib.error.HTTPError as error:
            error.close()
            return f"status {error.code} {error.reason}"
        except urllib.error.URLError as error:
            return str(error.reason)
        except (OSError, HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # a bug of the encoder must not end the thread
            logger.exception("cannot encode spans for the trace collector; the node drops these spans")
            return f"{type(error).__name__}: {error}"
        return None


def provider_of(role: str, node_id: int, export: SpanExport) -> TracerProvider:
    """The provider of one node's tracers. The provider is not the program's global provider, because one program may
    contain several nodes. The provider samples a span only if the caller's span is sampled, and begins no traces."""
    resource = Resource.create(
        {
            "service.name": f"headrace-{role}",
            "service.version": version("headrace-core"),
            "service.instance.id": str(node_id),
        }
    )
    provider = TracerProvider(resource=resource, sampler=ParentBased(root=ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(export)
    return provider
