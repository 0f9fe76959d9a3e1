"""Find the client whose quotas apply to a call."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ..node.listeners import GATEWAY
from ..security.caller import NO_CALLER, current_caller
from ..security.gate import PRINCIPAL_KEY
from ..security.principal import ANONYMOUS
from ..security.protocols import CLIENT_ID_CHARS_MAX, CLIENT_ID_KEY
from .entities import COUNTED_KEY
from .manager import ClientLimits, QuotaManager


def limits_of(quotas: QuotaManager, context: Any, *, is_shared: bool = False) -> ClientLimits | None:
    """Return the limits of the client that makes the present call; None if a node makes it. ``is_shared``: on a stream
    of this kind, a gateway sends the requests of several clients. The gateway itself counts these requests, so its
    stream has no limits here."""
    caller = current_caller()
    if caller.role is not None or (is_shared and caller.listener == GATEWAY):
        return None
    if caller is not NO_CALLER:
        return ClientLimits(quotas, caller.principal.name, caller.client_id)
    # The listener has no security: the user is the name that a gateway sends, which is not verified.
    metadata = dict(context.invocation_metadata() or ())
    named = str(metadata.get(PRINCIPAL_KEY, ""))
    if COUNTED_KEY in metadata or (is_shared and named):
        return None
    user = unquote(named).partition(":")[2] or ANONYMOUS.name
    return ClientLimits(quotas, user, unquote(str(metadata.get(CLIENT_ID_KEY, "")))[:CLIENT_ID_CHARS_MAX])
