"""Find the client whose quotas apply to a call."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ..security.caller import NO_CALLER, current_caller
from ..security.principal import ANONYMOUS
from ..security.protocols import CLIENT_ID_CHARS_MAX, CLIENT_ID_KEY
from .entities import COUNTED_KEY
from .manager import ClientLimits, QuotaManager


def limits_of(quotas: QuotaManager, context: Any) -> ClientLimits | None:
    """Return the limits of the client that makes the present call; None if a node makes it."""
    caller = current_caller()
    if caller.role is not None:
        return None
    if caller is not NO_CALLER:
        return ClientLimits(quotas, caller.principal.name, caller.client_id)
    # The listener has no security: the client id is not verified.
    metadata = dict(context.invocation_metadata() or ())
    if COUNTED_KEY in metadata:
        return None
    client_id = unquote(str(metadata.get(CLIENT_ID_KEY, "")))[:CLIENT_ID_CHARS_MAX]
    return ClientLimits(quotas, ANONYMOUS.name, client_id)
