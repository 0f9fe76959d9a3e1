"""A client of Kafka Connect's REST API: list, create, restart and delete connectors, and read their status.

A request goes to the first worker that accepts a connection; any worker of a Connect cluster forwards a change to the
worker that leads. A worker answers 409 while the Connect cluster rebalances. The client then repeats the request until
its timeout ends, because a request that was refused with 409 had no effect.

Source: https://kafka.apache.org/documentation/#connect_rest; KIP-745 (restart with tasks).
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from headrace_core.errors import ClientError, InvalidArgumentError, RequestTimedOutError

#: Maximum size of an answer in bytes: enough for thousands of connectors with configurations and stack traces.
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
#: Seconds that one worker may take to accept a connection; then the client tries the next worker.
CONNECT_S: Final = 10.0
#: The pause between two attempts while the workers rebalance, in seconds.
RETRY_S: Final = 0.5
#: Maximum number of characters of an answer that an error message quotes.
_QUOTED_MAX: Final = 2_000
FAILED: Final = "FAILED"
RUNNING: Final = "RUNNING"


class ConnectError(ClientError):
    """Base of the errors of Kafka Connect's workers. ``status``: the HTTP status of the answer; 0 without an answer."""

    code = "CONNECT_REFUSED"

    def __init__(self, message: str = "", *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ConnectUnavailableError(ConnectError):
    """No Connect worker could be reached; the message names each URL with its cause."""

    code, retriable = "CONNECT_UNAVAILABLE", True


class ConnectRebalancingError(ConnectError):
    """The Connect workers rebalanced until the timeout ended, so the request changed nothing."""

    code, retriable = "CONNECT_REBALANCING", True


class ConnectorNotFoundError(ConnectError):
    """The Connect cluster has no such connector or task."""

    code = "CONNECTOR_NOT_FOUND"


class ConnectorAlreadyExistsError(ConnectError):
    """The Connect cluster already has a connector of this name."""

    code = "CONNECTOR_ALREADY_EXISTS"


class InvalidConnectorConfigError(ConnectError):
    """The configuration of a connector is not valid. ``reasons``: the texts of all faults that Connect has found."""

    code = "INVALID_CONNECTOR_CONFIG"

    def __init__(self, message: str = "", *, reasons: tuple[str, ...] = (), status: int = 0) -> None:
        super().__init__(message, status=status)
        self.reasons = reasons


class ConnectorFailedError(ConnectError):
    """The connector or one of its tasks has failed; the message has the cause."""

    code = "CONNECTOR_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """``state``: RUNNING, PAUSED, FAILED, UNASSIGNED, RESTARTING or STOPPED. ``trace``: a failed task's stack trace."""

    id: int
    state: str
    worker_id: str
    trace: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    """``type``: source or sink. ``worker_id``: host:port of the worker that runs the connector. ``trace``: the stack
    trace of a failed connector. A connector may be RUNNING while its tasks are not running."""

    name: str
    type: str
    state: str
    worker_id: str
    trace: str | None
    tasks: tuple[TaskStatus, ...]

    def is_running(self) -> bool:
        """Whether the connector and all its tasks run, and there is at least one task."""
        return bool(self.tasks) and {self.state, *(task.state for task in self.tasks)} == {RUNNING}

    def in_words(self) -> str:
        tasks = ", ".join(f"task {task.id} {task.state}" for task in self.tasks)
        return plain(f"connector {self.state}, {tasks or 'no task'}")

    def failure(self) -> str | None:
        """The failed connector or task, with the first line of its stack trace; None if nothing has failed."""
        parts = [("the connector", self.state, self.trace)]
        parts += [(f"task {task.id}", task.state, task.trace) for task in self.tasks]
        for part, state, trace in parts:
            if state == FAILED:
                return f"{part}: {first_line(trace) or 'no cause is known'}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedConnector:
    """An entry in the list of connectors. ``connector_class``: the value of its key ``connector.class``."""

    status: ConnectorStatus
    connector_class: str


@dataclass(frozen=True, slots=True)
class _Worker:
    url: str  # without user and password
    scheme: str
    host: str
    port: int
    path: str
    authorization: str | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """``document``: the JSON of the body; None for an empty body."""

    status: int
    document: Any
    url: str


class _NoConnectionError(Exception):
    """The error of a request that the worker cannot have received."""


class ConnectClient:
    """Sends requests to the first of ``urls`` that accepts a connection. A URL may contain ``user:password@``.

    ``timeout_s`` is the limit of each call, retries included. Raises InvalidArgumentError for a wrong URL."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not urls:
            raise InvalidArgumentError("no URL of a Connect worker is given: write http://HOST:PORT")
        self._workers = [_worker(url) for url in urls]
        self._timeout_s, self._now, self._sleep = timeout_s, now, sleep

    # ---------------------------------------------------------------- calls

    def list(self) -> list[ListedConnector]:
        """All connectors, by name."""
        answer = self._call("GET", "/connectors?expand=status&expand=info", "list the connectors")
        found = []
        for name, each in sorted(_object(answer, answer.document).items()):
            entry = _object(answer, each)
            config = _object(answer, _object(answer, entry.get("info")).get("config"))
            found.append(
                ListedConnector(
                    status=_status(answer, name, entry.get("status")),
                    connector_class=_text(config.get("connector.class")),
                )
            )
        return found

    def status(self, name: str) -> ConnectorStatus:
        """The status of a connector and its tasks. Raises ConnectorNotFoundError; for a moment after its creation, a
        new connector has no status."""
        answer = self._call("GET", f"{_path(name)}/status", f"read the status of connector {name!r}")
        return _status(answer, name, answer.document)

    def create(self, name: str, config: Mapping[str, str], *, initial_state: str | None = None) -> None:
        """Create a connector; its tasks start later. ``initial_state``: RUNNING (the default), PAUSED or STOPPED, for
        Kafka Connect 3.7 or later (KIP-980). Raises ConnectorAlreadyExistsError and InvalidConnectorConfigError."""
        _check(name)
        body: dict[str, Any] = {"name": name, "config": dict(config)}
        if initial_state is not None:
            body["initial_state"] = initial_state
        self._call("POST", "/connectors", f"create connector {name!r}", body)

    def replace(self, name: str, config: Mapping[str, str]) -> bool:
        """Create a connector, or give it another configuration. Returns whether the connector is new."""
        _check(name)
        answer = self._call("PUT", f"{_path(name)}/config", f"configure connector {name!r}", dict(config))
        return answer.status == http.client.CREATED

    def restart(self, name: str, *, only_failed: bool = False) -> None:
        """Restart the connector and its tasks, or only the parts that have failed. The call returns before the
        connector and its tasks run."""
        query = f"includeTasks=true&onlyFailed={str(only_failed).lower()}"
        self._call("POST", f"{_path(name)}/restart?{query}", f"restart connector {name!r}")

    def restart_task(self, name: str, task: int) -> None:
        self._call("POST", f"{_path(name)}/tasks/{task}/restart", f"restart task {task} of connector {name!r}")

    def delete(self, name: str) -> None:
        """Stop a connector and delete its configuration. Connect keeps a source's offsets for a connector of the same
        name."""
        self._call("DELETE", _path(name), f"delete connector {name!r}")

    def wait_until_running(self, name: str, within_s: float) -> None:
        """Wait until a new connector and at least one task run. Raises ConnectorFailedError if the connector or a task
        fails, and RequestTimedOutError.

        The method accepts a state only when two reads in a row return it: after a deletion, workers still show the
        status of the deleted connector for a moment."""
        deadline = self._now() + within_s
        before: ConnectorStatus | None = None
        while True:
            try:
                status = self.status(name)
            except ConnectorNotFoundError:
                status = None  # the workers have not read the new connector yet
            if status is not None and status == before:
                if (failure := status.failure()) is not None:
                    raise ConnectorFailedError(f"connector {name!r} is created, but has failed: {failure}")
                if status.is_running():
                    return
            before = status
            if self._now() >= deadline:
                found = "it has no status yet" if status is None else f"its states: {status.in_words()}"
                raise RequestTimedOutError(
                    f"connector {name!r} is created, but does not run after {within_s:g} s ({found}); look again with "
                    f"`headrace connectors status {name}`"
                )
            self._sleep(RETRY_S)

    # ---------------------------------------------------------------- requests

    def _call(self, method: str, path: str, what: str, body: Any = None) -> _Answer:
        """Send a request until a worker accepts or refuses it. ``what``: the request in words, for errors."""
        data = None if body is None else json.dumps(body).encode()
        deadline = self._now() + self._timeout_s
        while True:
            answer = self._ask_one(method, path, what, data, deadline)
            if answer.status != http.client.CONFLICT or _already_exists(answer):
                return _accepted(answer, what)
            if self._now() + 2 * RETRY_S >= deadline:  # one for the pause, one for the worker's answer
                raise ConnectRebalancingError(
                    f"cannot {what}: the Connect workers were still rebalancing after {self._timeout_s:g} s "
                    f"({_message(answer)}); repeat the command with a longer --timeout",
                    status=answer.status,
                )
            self._sleep(RETRY_S)

    def _ask_one(self, method: str, path: str, what: str, data: bytes | None, deadline: float) -> _Answer:
        reasons = []
        for worker in self._workers:
            try:
                return self._ask(worker, method, path, what, data, deadline)
            except _NoConnectionError as error:
                reasons.append(f"{worker.url}: {error}")
        raise ConnectUnavailableError(
            f"cannot {what}: no Connect worker answers ({'; '.join(reasons)}); start a worker, or pass --connect-url"
        )

    def _ask(self, worker: _Worker, method: str, path: str, what: str, data: bytes | None, deadline: float) -> _Answer:
        headers = {"Accept": "application/json", "User-Agent": "headrace"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        if worker.authorization is not None:
            headers["Authorization"] = worker.authorization
        connection = self._connection(worker, deadline)
        try:
            connection.request(method, worker.path + path, body=data, headers=headers)
            response = connection.getresponse()
            raw = self._read(response, deadline)
        except TimeoutError:
            raise RequestTimedOutError(
                f"cannot {what}: {worker.url} did not answer within {self._timeout_s:g} s; the worker may be starting"
                f"{_MAY_BE_DONE if method != 'GET' else ''}"
            ) from None
        except (http.client.HTTPException, OSError) as error:
            raise ConnectUnavailableError(
                f"cannot {what}: {worker.url} gave no complete answer ({_reason(error)})"
                f"{_MAY_BE_DONE if method != 'GET' else ''}"
            ) from None
        finally:
            connection.close()
        return _Answer(response.status, _document(worker, response, raw, what), worker.url)

    def _connection(self, worker: _Worker, deadline: float) -> http.client.HTTPConnection:
        """An open connection to a worker; its reads and writes end soon after the deadline."""
        left_s = max(deadline - self._now(), 0.05)
        kind = http.client.HTTPSConnection if worker.scheme == "https" else http.client.HTTPConnection
        connection = kind(worker.host, worker.port, timeout=min(left_s, CONNECT_S))
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # UnicodeError: the host is no name of DNS
            connection.close()
            raise _NoConnectionError(_reason(error)) from None
        connection.sock.settimeout(left_s)
        return connection

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while chunk := response.read1(65_536):
            size += len(chunk)
            parts.append(chunk)
            if size > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(
                    f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes, the maximum for an answer of Kafka Connect"
                )
            if self._now() > deadline:
                raise TimeoutError
        if response.length:
            raise http.client.HTTPException(
                f"the connection closed {response.length:,} bytes before the end of the answer"
            )
        return b"".join(parts)


_MAY_BE_DONE: Final = "; the request may have been carried out: check before you repeat it"


# -- answers ----------------------------------------------------------------------------------------------------------


def _document(worker: _Worker, response: http.client.HTTPResponse, raw: bytes, what: str) -> Any:
    try:
        return json.loads(raw) if raw.strip() else None
    except (ValueError, RecursionError):
        raise ConnectError(
            f"cannot {what}: {worker.url} answers with HTTP status {response.status} and "
            f"{plain(response.headers.get_content_type())} in place of JSON; is Kafka Connect at this address?",
            status=response.status,
        ) from None


def _accepted(answer: _Answer, what: str) -> _Answer:
    """Return the answer if the request succeeded. Raises the error that corresponds to the HTTP status of the
    answer."""
    status, said = answer.status, _message(answer)
    if 200 <= status < 300:
        return answer
    if status == http.client.NOT_FOUND:
        raise ConnectorNotFoundError(
            f"cannot {what}: {said}; `headrace connectors list` shows the connectors", status=status
        )
    if status == http.client.CONFLICT:
        raise ConnectorAlreadyExistsError(
            f"cannot {what}: {said}; pass --replace to change its configuration", status=status
        )
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        raise ConnectError(
            f"cannot {what}: {answer.url} refused the user (HTTP status {status}: {said}); write the URL as "
            "http://USER:PASSWORD@HOST:PORT",
            status=status,
        )
    if (reasons := _config_faults(answer)) is not None:
        raise InvalidConnectorConfigError(f"cannot {what}: {'; '.join(reasons)}", reasons=reasons, status=status)
    raise ConnectError(f"cannot {what}: {answer.url} answered with HTTP status {status}: {said}", status=status)


_NO_CLASS = re.compile(r"Failed to find any class that implements (\w+) and which name matches (\S+?),")
_PLUGIN = re.compile(r"PluginDesc\{klass=class ([\w.$]+)")


def _config_faults(answer: _Answer) -> tuple[str, ...] | None:
    """The faults that Connect found in a configuration; None if the answer lists no such faults."""
    text = _raw_message(answer)
    if (missing := _NO_CLASS.search(text)) is not None:
        classes = sorted({name.rpartition(".")[2] for name in _PLUGIN.findall(text)})
        known = f"; the worker has {', '.join(map(plain, classes))}" if classes else ""
        return (f"the worker has no {plain(missing[1])} of the class {plain(missing[2])}{known}",)
    if answer.status != http.client.BAD_REQUEST:
        return None
    first, *lines = text.splitlines() or [""]
    if not first.startswith("Connector configuration is invalid"):
        return (_message(answer),)
    faults = [plain(line) for line in lines if line.strip() and not line.startswith("You can also find")]
    return tuple(faults) or (plain(first),)


def _already_exists(answer: _Answer) -> bool:
    """Whether an answer with status 409 (conflict) means that the connector already exists. With any other reason, the
    status 409 means a rebalance."""
    return _raw_message(answer).endswith("already exists")


def _raw_message(answer: _Answer) -> str:
    document = answer.document
    return _text(document.get("message")) if isinstance(document, dict) else ""


def _message(answer: _Answer) -> str:
    return plain(_raw_message(answer)) or "no reason is given"


def _status(answer: _Answer, name: str, document: Any) -> ConnectorStatus:
    found = _object(answer, document)
    connector = _object(answer, found.get("connector"))
    tasks = found.get("tasks")
    if not isinstance(tasks, list):
        raise _not_connect(answer)
    return ConnectorStatus(
        name=name,
        type=_text(found.get("type")),
        state=_text(connector.get("state")),
        worker_id=_text(connector.get("worker_id")),
        trace=_trace(connector),
        tasks=tuple(sorted((_task(answer, each) for each in tasks), key=lambda task: task.id)),
    )


def _task(answer: _Answer, document: Any) -> TaskStatus:
    task = _object(answer, document)
    number = task.get("id")
    if not isinstance(number, int):
        raise _not_connect(answer)
    return TaskStatus(
        id=number, state=_text(task.get("state")), worker_id=_text(task.get("worker_id")), trace=_trace(task)
    )


def _trace(document: Mapping[str, Any]) -> str | None:
    return _text(document.get("trace")) or None


def _object(answer: _Answer, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _not_connect(answer)
    return document


def _not_connect(answer: _Answer) -> ConnectError:
    return ConnectError(
        f"{answer.url} answered with JSON that Kafka Connect does not send; is Kafka Connect 2.3 or later at this "
        "address?",
        status=answer.status,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def plain(text: str) -> str:
    """The text of an answer as one line of printable characters."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    return line if len(line) <= _QUOTED_MAX else f"{line[:_QUOTED_MAX]}..."


def first_line(trace: str | None) -> str:
    """The first line of a stack trace: the exception and its message. The first line of the innermost cause is
    appended."""
    lines = (trace or "").strip().splitlines()
    if not lines:
        return ""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    shown = plain(lines[0])
    return f"{shown} ({plain(causes[-1].removeprefix('Caused by: '))})" if causes else shown


# -- addresses --------------------------------------------------------------------------------------------------------


def _check(name: str) -> None:
    """Refuse a connector name that Connect accepts, but that its REST API cannot find again, because Jetty refuses the
    name in a path."""
    if name in ("", ".", "..") or not name.isprintable() or any(each in name for each in "/\\%"):
        raise InvalidArgumentError(
            f"the name {name!r} cannot be part of a URL of Kafka Connect; use letters, digits, '.', '-' and '_'"
        )


def _path(name: str) -> str:
    return f"/connectors/{quote(name, safe='')}"


def _worker(url: str) -> _Worker:
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    shown = re.sub(r"//.*@", "//", text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidArgumentError(f"{shown!r} is not a URL of a Connect worker: write http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = port or (443 if parts.scheme == "https" else 8083)
    path = parts.path.rstrip("/")
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(user.encode()).decode()
    return _Worker(f"{parts.scheme}://{host}:{port}{path}", parts.scheme, parts.hostname, port, path, authorization)


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE names other authorities"
    return plain(f"{type(error).__name__}: {error}") if str(error) else type(error).__name__
