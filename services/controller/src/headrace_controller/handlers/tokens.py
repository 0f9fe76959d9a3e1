"""Delegation tokens over gRPC (KIP-48) on the active controller; SecurityHandler (security.py) has the methods of all
calls. The requests name the client that sent them (core/security/token_calls.py).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from headrace_core.clock import Clock
from headrace_core.errors import (
    DelegationTokenAuthDisabledError,
    DelegationTokenRequestNotAllowedError,
    HeadraceError,
)
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import DelegationTokenRecord
from headrace_core.node.ids import id_to_text, random_id
from headrace_core.security.sasl.tokens import token_hmac
from headrace_protos.v1 import security_pb2

from ..cluster import tokens
from ..cluster.requests import CreateToken, ExpireToken, RemoveExpiredTokens, RenewToken
from ..driver import ControllerDriver

logger = logging.getLogger("headrace.controller")


class Tokens:
    """``secret_key``: delegation.token.secret.key; None: the cluster has no tokens. ``check_interval_s``: seconds
    between two removals of expired tokens."""

    def __init__(
        self, driver: ControllerDriver, secret_key: str | None, clock: Clock, *, check_interval_s: float
    ) -> None:
        self._driver = driver
        self._secret_key = secret_key
        self._clock = clock
        self._check_interval_s = check_interval_s
        self._hmacs: dict[str, bytes] = {}  #: the HMACs of the tokens in the image, by id
        self._ids: dict[bytes, str] = {}

    async def create(self, request: Any) -> Any:
        """Raises DelegationTokenAuthDisabledError and the errors of ``tokens.create``."""
        key, requester = self._key(), _requester(request)
        answer = await self._driver.ask(
            CreateToken(
                id_to_text(random_id()),
                request.owner or requester,
                requester,
                tuple(request.renewers),
                request.max_lifetime_ms,
                self._now_ms(),
            )
        )
        return security_pb2.CreateDelegationTokenResponse(
            token=_described(answer.reply, token_hmac(key, answer.reply.token_id)),
            metadata_offset=answer.metadata_offset,
        )

    async def renew(self, request: Any) -> Any:
        """Raises DelegationTokenAuthDisabledError and the errors of ``tokens.renew``."""
        asked = RenewToken(await self._id_of(request.hmac), _requester(request), request.period_ms, self._now_ms())
        answer = await self._driver.ask(asked)
        return security_pb2.RenewDelegationTokenResponse(
            expires_at_ms=answer.reply, metadata_offset=answer.metadata_offset
        )

    async def expire(self, request: Any) -> Any:
        """Raises DelegationTokenAuthDisabledError and the errors of ``tokens.expire``."""
        asked = ExpireToken(await self._id_of(request.hmac), _requester(request), request.period_ms, self._now_ms())
        answer = await self._driver.ask(asked)
        return security_pb2.ExpireDelegationTokenResponse(
            expires_at_ms=answer.reply, metadata_offset=answer.metadata_offset
        )

    async def describe(self, request: Any) -> Any:
        """The tokens that one of the owners owns, has requested or may renew, as in Kafka (KIP-373); without owners,
        all tokens. Raises DelegationTokenAuthDisabledError."""
        self._key()
        await self._driver.barrier()
        image, owners = self._driver.image, frozenset(request.owners)
        self._index(image)
        return security_pb2.DescribeDelegationTokensResponse(
            tokens=[
                _described(each, self._hmacs[each.token_id])
                for each in image.security.tokens.values()
                if not owners or not owners.isdisjoint((each.owner, each.requester, *each.renewers))
            ]
        )

    async def run(self) -> None:
        """Remove expired tokens while this controller leads, until cancelled."""
        while True:
            await asyncio.sleep(self._check_interval_s)
            if not self._driver.is_leader or not tokens.has_expired(self._driver.image, self._now_ms()):
                continue
            try:
                await self._driver.ask(RemoveExpiredTokens(self._now_ms()))
            except HeadraceError as error:
                logger.warning("expired delegation tokens are not removed yet: %s", error)

    def _key(self) -> str:
        if not self._secret_key:
            raise DelegationTokenAuthDisabledError(
                "delegation tokens are disabled in the cluster: set delegation.token.secret.key on all nodes"
            )
        return self._secret_key

    async def _id_of(self, mac: bytes) -> str:
        """The id of the token with this HMAC; "" if there is none."""
        self._key()
        await self._driver.barrier()  # a new leader may not have applied the token yet
        self._index(self._driver.image)
        return self._ids.get(mac, "")

    def _index(self, image: MetadataImage) -> None:
        there = image.security.tokens
        for token_id in [each for each in self._hmacs if each not in there]:
            del self._ids[self._hmacs.pop(token_id)]
        for token_id in there:
            if token_id not in self._hmacs:
                mac = self._hmacs[token_id] = token_hmac(self._key(), token_id)
                self._ids[mac] = token_id

    def _now_ms(self) -> int:
        return int(self._clock.now_ms())


def _requester(request: Any) -> str:
    if not request.requester:
        raise DelegationTokenRequestNotAllowedError(
            "the request does not name its client, because the node that forwarded the request is too old; upgrade "
            "that node"
        )
    return str(request.requester)


def _described(token: DelegationTokenRecord, mac: bytes) -> security_pb2.DelegationToken:
    return security_pb2.DelegationToken(
        token_id=token.token_id,
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issued_at_ms=token.issued_at_ms,
        expires_at_ms=token.expires_at_ms,
        max_lifetime_at_ms=token.max_lifetime_at_ms,
        hmac=mac,
    )
