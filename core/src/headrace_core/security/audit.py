"""The audit log: a line with a JSON object for each refused access, each refused login, and a sample of the allowed
accesses.

    {"at": "2026-11-26T12:00:00.123Z", "decision": "DENIED", "principal": "User:bob", "host": "10.0.0.7",
     "client_id": "etl", "listener": "client", "call": "Produce/Produce", "operation": "WRITE",
     "resource_type": "TOPIC", "resource": "orders"}

The line of a refused login has the mechanism and the error in place of operation and resource. The principal is null,
because the client has not proved its name, and a user may have typed the password in place of the name:

    {"at": "2026-11-26T12:00:00.123Z", "decision": "DENIED", "principal": null, "host": "10.0.0.7", "client_id": "",
     "listener": "client", "call": "Authentication/Authenticate", "mechanism": "SCRAM-SHA-512",
     "error": "SASL_AUTHENTICATION_FAILED", "why": "SCRAM-SHA-512: the credentials are wrong; check ..."}

The line of a Kafka client's failed TLS handshake has the reason, in OpenSSL's words. (gRPC hides failed handshakes.)

    {"at": "2026-11-26T12:00:00.123Z", "decision": "DENIED", "principal": null, "host": "10.0.0.7", "client_id": "",
     "listener": "kafka", "call": "TLS handshake", "error": "SSL_HANDSHAKE_FAILED", "why": "certificate expired"}

A caller can be unknown because of a wrong session key, or a user's certificate at a port for nodes. The audit line for
such a call has the call's name and the error:

    {"at": "2026-11-26T12:00:00.123Z", "decision": "DENIED", "principal": null, "host": "10.0.0.7", "client_id": "",
     "listener": "internal", "call": "Raft/Exchange", "error": "SASL_AUTHENTICATION_FAILED", "why": "the ..."}

The file is rotated by size. Each second has a limited number of lines, so a client that is refused again and again
cannot fill the disk. The next line in the file gives the number of missing lines (``dropped``). Clients without a login
can cause lines, too: failed logins get at most half of the lines. Handshakes and calls of unknown callers cost a client
nothing, so they get only a tenth of the lines. The other lines are left for refused accesses.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import Any

from ..errors import HeadraceError
from .acl_types import Operation, ResourceType
from .caller import Caller

LINES_PER_S_MAX = 1_000
#: Maximum number of lines per second about handshakes and calls of unknown callers, and about failed logins.
UNKNOWN_PER_S_MAX, LOGINS_PER_S_MAX = LINES_PER_S_MAX // 10, LINES_PER_S_MAX // 2
#: The kinds of lines: about known callers, about failed logins, about handshakes and calls of unknown callers.
_CALLERS, _LOGINS, _UNKNOWN = "callers", "logins", "unknown"
_PER_S_MAX = {_CALLERS: LINES_PER_S_MAX, _LOGINS: LOGINS_PER_S_MAX, _UNKNOWN: UNKNOWN_PER_S_MAX}
LOGIN, HANDSHAKE = "Authentication/Authenticate", "TLS handshake"
TEXT_CHARS_MAX = 512  #: Maximum length of a name; a longer name is cut, so that a line has at most a few KiB.


class AuditLog:
    """Writes the decisions about accesses and logins; an ``access.Observer``. ``write`` gets each line, without the
    line break."""

    def __init__(self, write: Callable[[str], None], now_s: Callable[[], float] = time.time) -> None:
        self._write = write
        self._now_s = now_s
        self._second = self._dropped = 0
        self._lines: Counter[str] = Counter()  # lines of this second, by kind

    def __call__(
        self,
        caller: Caller,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None,
        is_allowed: bool,
        method: str,
    ) -> None:
        self._add(
            decision="ALLOWED" if is_allowed else "DENIED",
            principal=str(caller.principal)[:TEXT_CHARS_MAX],
            host=caller.host,
            client_id=caller.client_id[:TEXT_CHARS_MAX],
            listener=caller.listener,
            call=method,
            operation=operation.name,
            resource_type=resource_type.name,
            resource=None if name is None else name[:TEXT_CHARS_MAX],
        )

    def login_refused(self, host: str, client_id: str, listener: str, mechanism: str, error: HeadraceError) -> None:
        """Write a line about a refused login."""
        self._add(
            of=_LOGINS,
            decision="DENIED",
            principal=None,
            host=host,
            client_id=client_id[:TEXT_CHARS_MAX],
            listener=listener,
            call=LOGIN,
            mechanism=mechanism[:TEXT_CHARS_MAX],
            error=error.code,
            why=error.message[:TEXT_CHARS_MAX],
        )

    def handshake_failed(self, host: str, listener: str, why: str) -> None:
        """Write a line about a failed TLS handshake."""
        self._of_unknown_caller(host, listener, HANDSHAKE, "SSL_HANDSHAKE_FAILED", why)

    def call_refused(self, host: str, listener: str, call: str, error: HeadraceError) -> None:
        """Write a line about a call whose caller could not be identified."""
        self._of_unknown_caller(host, listener, call, error.code, error.message)

    def _of_unknown_caller(self, host: str, listener: str, call: str, error: str, why: str) -> None:
        self._add(
            of=_UNKNOWN,
            decision="DENIED",
            principal=None,
            host=host,
            client_id="",
            listener=listener,
            call=call[:TEXT_CHARS_MAX],
            error=error,
            why=why[:TEXT_CHARS_MAX],
        )

    def _add(self, *, of: str = _CALLERS, **values: str | None) -> None:
        """Write a line of the kind ``of``, unless a limit of lines in this second is reached."""
        now_s = self._now_s()
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._lines.clear()
        if self._lines.total() >= LINES_PER_S_MAX or self._lines[of] >= _PER_S_MAX[of]:
            self._dropped += 1
            return
        self._lines[of] += 1
        at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"at": at, **values}
        if self._dropped:
            line["dropped"], self._dropped = self._dropped, 0
        self._write(json.dumps(line))


def audit_log_of(values: Mapping[str, Any]) -> AuditLog | None:
    """The audit log of a node's configuration; None without audit.log.path. Raises OSError if the file cannot be
    opened."""
    path = values.get("audit.log.path")
    if not path:
        return None
    handler = RotatingFileHandler(
        path, maxBytes=values["audit.log.max.bytes"], backupCount=values["audit.log.files"], encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(message)s"))
    own = logging.Logger("headrace.audit.file")  # a logger for each node: nodes may share a process
    own.addHandler(handler)
    return AuditLog(lambda line: own.info("%s", line))
