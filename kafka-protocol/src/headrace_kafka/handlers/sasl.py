"""SaslHandshake (KIP-43) and SaslAuthenticate (KIP-152, KIP-368). After a failed authentication, the connection sends
the answer with a delay, and then closes (KIP-306)."""

from __future__ import annotations

import time
from typing import Any

from headrace_core.errors import HeadraceError, IllegalSaslStateError, SaslAuthenticationFailedError
from headrace_core.security.acl_types import network_of

from .. import sasl
from ..call import Call
from ..client import Client
from ..errors import NONE, number
from ..sasl import State
from ..wire.schema import Message

Fields = dict[str, Any]


async def sasl_handshake(call: Call, request: Message) -> Fields:
    authentication = call.client.authentication
    if authentication is None:
        return {"error_code": IllegalSaslStateError.number, "mechanisms": []}
    try:
        authentication.handshake(request.mechanism, call.version, sasl.now_ms())
    except IllegalSaslStateError as error:
        return {"error_code": number(error), "mechanisms": []}
    except HeadraceError as error:
        return {"error_code": number(error), "mechanisms": list(authentication.mechanisms)}
    return {"error_code": NONE, "mechanisms": list(authentication.mechanisms)}


async def sasl_authenticate(call: Call, request: Message) -> Fields:
    authentication = call.client.authentication
    if authentication is None or authentication.state is not State.EXCHANGE:
        text = "SaslAuthenticate request received after successful authentication"
        return {"error_code": IllegalSaslStateError.number, "error_message": text}
    try:
        data, lifetime_ms = await step(call.client, request.auth_bytes)
    except HeadraceError as error:
        return {"error_code": number(error), "error_message": str(error)}
    return {"error_code": NONE, "auth_bytes": data, "session_lifetime": lifetime_ms}


async def step(client: Client, data: bytes) -> tuple[bytes, int]:
    """Process the client's next bytes in the SASL exchange. Returns the bytes for the client, and the lifetime of the
    client's session in milliseconds (0: no limit). Sets the client's principal when the exchange is complete. Raises
    SaslAuthenticationFailedError; the connection must close then."""
    authentication = client.authentication
    assert authentication is not None
    exchange = authentication.exchange
    try:
        if exchange.is_slow(data):
            assert client.slow_steps is not None
            taken = await client.slow_steps.run(exchange, data, network_of(client.host))
        else:
            taken = exchange.step(data)
        lifetime_ms = authentication.stepped(taken, sasl.now_ms(), time.time() * 1_000)
    except HeadraceError as error:
        authentication.failed()
        if isinstance(error, SaslAuthenticationFailedError):
            raise
        raise SaslAuthenticationFailedError(str(error)) from None
    except BaseException:
        authentication.failed()
        raise
    if taken.identity is not None:
        client.authenticated(authentication.principal, taken.identity.token_id)
    return taken.data, lifetime_ms
