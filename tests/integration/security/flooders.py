"""Clients that flood a secured cluster, each kind in a process of its own: ``python -m … KIND {settings as JSON}``.

Prints READY when the attack begins, and at its end one JSON object: how often each outcome was seen.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from headrace_core.errors import ServerBusyError
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.security.gate import SESSION_KEY
from headrace_core.security.sasl.plain import PlainClient
from headrace_core.security.sasl.scram import SHA_512, encoded, new_nonce
from headrace_core.security.sasl.scram_exchange import ScramClient
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, security_pb2, security_pb2_grpc
from tests.worlds.kafka_protocol import read_answer, request_frame

READY = "attacking"
AT_ONCE = 50  #: Concurrent logins: half of what a listener takes from one host.
FAILURES_PER_CONNECTION = 10
#: Of this number of failed logins one is PLAIN, which costs the server two hashes of a password.
PLAIN_EVERY = 10
#: A node ends a call that it refuses as busy before the call's first message. gRPC then may report this error for the
#: client's write, in place of the node's status.
REFUSED_WRITE = "Internal error from Core"


class Flood:
    """``settings``: address (host:port), ca (path), count or seconds, user and password of an authenticated kind."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.address, self.ca = settings["address"], Path(settings["ca"])
        self.seconds: float = settings.get("seconds", 0.0)
        self.user: str = settings.get("user", "")
        self.password: str = settings.get("password", "")
        self.seen: Counter[str] = Counter()
        self._left: int = settings.get("count", 0)
        self._began_s = time.monotonic()

    def take(self, number: int) -> int:
        """Take up to ``number`` of the logins that are left."""
        taken = min(number, self._left)
        self._left -= taken
        return taken

    @property
    def is_on(self) -> bool:
        return time.monotonic() - self._began_s < self.seconds

    def begin(self) -> None:
        self._began_s = time.monotonic()
        print(READY, flush=True)

    def channel(self) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 128 << 20)]
        return grpc.aio.secure_channel(self.address, credentials, options)

    async def outcome(self, work: Awaitable[Any]) -> None:
        """Count how a call ended."""
        try:
            await work
            self.seen["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.seen[(error.details() or "").partition(":")[0][:40]] += 1


# -- without a login --------------------------------------------------------------------------------------------------


async def sdk_logins(flood: Flood) -> None:
    """``count`` logins with wrong passwords at a node."""
    flood.begin()

    async def guess() -> None:
        while number := flood.take(FAILURES_PER_CONNECTION):
            async with flood.channel() as channel:
                for turn in range(number):
                    await _guess(flood, channel, turn)

    await asyncio.gather(*(guess() for _ in range(AT_ONCE)))


async def _guess(flood: Flood, channel: grpc.aio.Channel, turn: int) -> None:
    call = security_pb2_grpc.AuthenticationStub(channel).Authenticate(timeout=60)  # type: ignore[no-untyped-call]
    try:
        if turn % PLAIN_EVERY == 0:
            first = PlainClient("ann", "wrong").first()
            await call.write(security_pb2.AuthenticateRequest(mechanism="PLAIN", data=first))
        else:
            first = f"n,,n=user-{turn},r={new_nonce()}".encode()
            await call.write(security_pb2.AuthenticateRequest(mechanism="SCRAM-SHA-512", data=first))
            answer = await call.read()
            if answer is not grpc.aio.EOF:
                final = b"c=biws," + answer.data.partition(b",")[0] + b",p=" + encoded(bytes(64)).encode()
                await call.write(security_pb2.AuthenticateRequest(data=final))
        await call.read()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the outcome is the call's status
        pass
    flood.seen[str(await call.details()).partition(":")[0][:40]] += 1


async def kafka_logins(flood: Flood) -> None:
    """``count`` logins with wrong passwords by Kafka's protocol, a connection for each."""
    context = ssl.create_default_context(cafile=str(flood.ca))
    flood.begin()

    async def guess() -> None:
        while flood.take(1):
            turn = flood.seen.total()
            mechanism = "PLAIN" if turn % PLAIN_EVERY == 0 else "SCRAM-SHA-512"
            first = PlainClient("ann", "wrong").first() if mechanism == "PLAIN" else f"n,,n=user-{turn},r=abc".encode()
            async with _Wire(flood.address, context) as wire:
                await wire.ask(Api.SASL_HANDSHAKE, mechanism=mechanism)
                answer = await wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=first)
                if not answer.error_code:
                    nonce = bytes(answer.auth_bytes).partition(b",")[0]
                    final = b"c=biws," + nonce + b",p=" + encoded(bytes(64)).encode()
                    answer = await wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=final)
            flood.seen[str(answer.error_code)] += 1

    await asyncio.gather(*(guess() for _ in range(AT_ONCE)))


class _Wire:
    """A connection of Kafka's protocol. ``ask`` raises ConnectionError."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        self._address, self._context, self._number = address, context, 0

    async def __aenter__(self) -> _Wire:
        host, _, port = self._address.rpartition(":")
        self._reader, self.writer = await asyncio.open_connection(host, int(port), ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, api: Api, **fields: Any) -> Any:
        self._number += 1
        version = VERSIONS[api].high
        self.writer.write(request_frame(api, version, self._number, **fields))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return read_answer(api, version, await self._reader.readexactly(size))[1]


# -- with a login ------------------------------------------------------------------------------------------------------


async def _log_in(flood: Flood) -> tuple[grpc.aio.Channel, Any, list[tuple[str, str]]]:
    """Returns a connection, the call that keeps its session, and the metadata of the session's calls. Tries other
    connections while the node refuses the port of a former one that has failed."""
    while True:
        client = ScramClient(SHA_512, flood.user, flood.password)
        channel = flood.channel()
        call = security_pb2_grpc.AuthenticationStub(channel).Authenticate()  # type: ignore[no-untyped-call]
        request = security_pb2.AuthenticateRequest(mechanism=client.mechanism, data=client.first())
        try:
            await call.write(request)
            answer = await call.read()
            while not answer.complete:
                await call.write(security_pb2.AuthenticateRequest(data=client.step(answer.data)))
                answer = await call.read()
        except grpc.aio.AioRpcError as error:
            if ServerBusyError.code not in str(error.details()) and error.details() != REFUSED_WRITE:
                raise
            await channel.close()
            continue
        return channel, call, [(SESSION_KEY, answer.session_token)]


async def _with_sessions(flood: Flood, connections: int, attack: Callable[[Any, Any], Awaitable[None]]) -> None:
    """Run ``attack(stub, metadata)`` on connections that have logged in."""
    sessions = [await _log_in(flood) for _ in range(connections)]
    flood.begin()
    await asyncio.gather(
        *(
            attack(metadata_pb2_grpc.MetadataStub(channel), metadata)  # type: ignore[no-untyped-call]
            for channel, _, metadata in sessions
        )
    )
    for channel, *_ in sessions:
        await channel.close()


async def requests(flood: Flood) -> None:
    """Small requests, 16 at a time on each of four connections."""

    async def attack(stub: Any, metadata: Any) -> None:
        async def repeat() -> None:
            while flood.is_on:
                await flood.outcome(stub.GetMetadata(metadata_pb2.MetadataRequest(all_topics=True), metadata=metadata))

        await asyncio.gather(*(repeat() for _ in range(16)))

    await _with_sessions(flood, 4, attack)


async def streams(flood: Flood) -> None:
    """Streams that open and end all the time, up to the limit of each of 20 connections."""

    async def attack(stub: Any, metadata: Any) -> None:
        async def repeat() -> None:
            while flood.is_on:
                call = stub.WatchMetadata(metadata_pb2.MetadataRequest(all_topics=True), metadata=metadata)
                await flood.outcome(call.read())
                call.cancel()

        await asyncio.gather(*(repeat() for _ in range(30)))

    await _with_sessions(flood, 20, attack)


async def huge(flood: Flood) -> None:
    """Requests of 1 MiB and of 64 MiB, full of names."""
    names = [f"no-such-topic-{number:06}" for number in range(40_000)]
    small = metadata_pb2.MetadataRequest(topics=names)
    large = metadata_pb2.MetadataRequest(topics=["x" * (1 << 20)] * 64)

    async def attack(stub: Any, metadata: Any) -> None:
        while flood.is_on:
            await flood.outcome(stub.GetMetadata(small, metadata=metadata))
            await flood.outcome(stub.GetMetadata(large, metadata=metadata))

    await _with_sessions(flood, 2, attack)


async def names(flood: Flood) -> None:
    """Requests with the longest names (rpc/limits.py), none of them twice."""
    count = itertools.count()

    async def attack(stub: Any, metadata: Any) -> None:
        while flood.is_on:
            keys = [f"{next(count)}-" + "x" * 30_000 for _ in range(50)]
            request = metadata_pb2.FindCoordinatorRequest(keys=keys)
            await flood.outcome(stub.FindCoordinator(request, metadata=metadata))

    await _with_sessions(flood, 4, attack)


KINDS = {each.__name__: each for each in (sdk_logins, kafka_logins, requests, streams, huge, names)}


async def main(kind: str, settings: str) -> None:
    flood = Flood(json.loads(settings))
    started_s = time.monotonic()
    await KINDS[kind](flood)
    print(json.dumps({"seconds": round(time.monotonic() - started_s, 2), "seen": flood.seen}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
