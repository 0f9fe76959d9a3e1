"""Export of a node's spans to a collector, by OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/).

One thread sends the spans, from a queue with at most QUEUE_MAX of them. A collector that is slow or unreachable costs
spans, and nothing else: the node drops the spans that do not fit. It reports the begin and the end of the failure in
one log line each. OpenTelemetry's own exporter and processor repeat their warnings, and may hold up the end of a
process for minutes.
"""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

logger = logging.getLogger("headrace.traces")

QUEUE_MAX = 2_048  #: Maximum number of spans that wait for the collector; later spans are dropped.
BATCH_MAX = 512  #: Maximum number of spans in one request.
PAUSE_S = 1.0  #: Seconds that a span waits for others before it is sent.


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it would carry the configured headers to another host."""

    def redirect_request(self, *args: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class SpanExport(SpanProcessor):
    """Sends ended spans to ``url``. ``timeout_s``: the time limit of one request, and of ``shutdown``."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
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
        while not self._is_over:
            self._wake.wait(PAUSE_S)
            self._wake.clear()
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
        try:
            body = encode_spans(spans).SerializeToString()
            request = urllib.request.Request(self._url, body, self._headers, method="POST")
            with _OPENER.open(request, timeout=self._timeout_s) as response:
                response.read()
        except urllib.error.HTTPError as error:
            return f"status {error.code} {error.reason}"
        except urllib.error.URLError as error:
            return str(error.reason)
        except (OSError, HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # a bug of the encoder must not end the thread
            logger.exception("the spans could not be encoded")
            return f"{type(error).__name__}: {error}"
        return None


def provider_of(role: str, node_id: int, export: SpanExport) -> TracerProvider:
    """The provider of one node's tracers. It is not the program's global provider, because one program may contain
    several nodes. It samples what the caller samples, and begins no traces."""
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
