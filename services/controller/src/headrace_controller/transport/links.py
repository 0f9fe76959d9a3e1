"""PeerLinks: the streams for Raft's messages between this controller and the other controllers.

Every controller, voter or not, opens a stream to every voter. Two voters have two streams between them, each opened by
one of the two; messages use the newest stream. A controller that knows no voter yet connects to the addresses in
``controller.quorum.bootstrap.servers``. A stream begins with a hello message from each side. A hello contains the
cluster's id, the sender's key (node id and directory id), and the key that the sender expects at the other end. An
unexpected node gets an error with a code, and this controller tries to connect to that node less often than to an
absent node.

``Peers.send`` never waits. A full queue drops messages, and a queue without a connection drops all large messages
(peers.py); Raft tolerates the loss of messages. A queued message is written in the present event loop pass or in the
next pass. ``peer_lost`` is called when the last stream to a replica has broken. A killed process closes its sockets, so
Raft need not wait for a timeout. A machine that fails closes no sockets; the kernel ends its connections after two
seconds without an acknowledgement (channel.py).

The general stream code is in core: rpc/streams.py accepts streams, rpc/duplex.py opens them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from headrace_core.errors import (
    HeadraceError,
    InconsistentClusterIdError,
    InvalidRequestError,
    InvalidVoterKeyError,
    ServerShuttingDownError,
    UnknownServerError,
)
from headrace_core.rpc import PLAINTEXT, ChannelPurpose, Channels
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.outage import Backoff, Outage
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security.node_ids import check_claim
from headrace_protos.v1 import raft_pb2, raft_pb2_grpc

from ..raft import NO_DIRECTORY, Message, ReplicaKey, VoterSet
from . import wire
from .peers import Peer, Peers

logger = logging.getLogger("headrace.controller")

#: First and longest pause in milliseconds between two attempts to connect to an absent node, and pause after a refused
#: connection.
_RETRY_FIRST_MS, _RETRY_MOST_MS = 50, 1_000
_REFUSED_MS = 5_000
#: Maximum number of unknown replicas that a controller remembers, so that it logs each of them once.
_STRANGERS_MAX = 1_000

Envelope = raft_pb2.RaftEnvelope


class PeerLinks(raft_pb2_grpc.RaftServicer):
    """See the module. Call all methods in one event loop. ``receive``, ``peer_lost``, ``observe`` (a replica has
    connected) and ``forget`` (a replica has disconnected) are called in the event loop, and must not raise."""

    def __init__(
        self,
        key: ReplicaKey,
        cluster_id: str,
        peers: Peers,
        *,
        receive: Callable[[Message], None],
        peer_lost: Callable[[ReplicaKey], None],
        observe: Callable[[ReplicaKey], None],
        forget: Callable[[ReplicaKey], None],
        channels: Channels = PLAINTEXT,
    ) -> None:
        self.key = key
        self.channels = channels
        self.cluster_id = cluster_id
        self.peers = peers
        self._address = ""
        self._receive = receive
        self._peer_lost = peer_lost
        self._observe = observe
        self._forget = forget
        self._voters = VoterSet(())
        self._configured: Mapping[int, str] = {}
        self._bootstrap: tuple[str, ...] = ()
        #: The dialers by replica, or by address while the replica at the address is unknown.
        self._dialers: dict[ReplicaKey | str, _Dialer] = {}
        self._accepted: set[_Accepted] = set()
        self._strangers: set[str] = set()
        self._is_open = False

    def start(self, address: str) -> None:
        """Start to open streams; call ``start`` in the event loop. ``address``: "host:port" of this controller's
        internal listener, for the other controllers."""
        self._address, self._is_open = address, True
        self._dial()

    def set_voters(
        self, voters: VoterSet, addresses: Mapping[int, str] | None = None, bootstrap: Sequence[str] = ()
    ) -> None:
        """Set the voters. ``addresses`` has the addresses of voters whose address is not in the log
        (controller.quorum.voters). ``bootstrap`` has addresses of other controllers, for non-voters
        (controller.quorum.bootstrap.servers)."""
        self._voters, self._configured, self._bootstrap = voters, addresses or {}, tuple(bootstrap)
        by_key = self.peers.by_key
        for key in voters:
            if key != self.key:
                by_key.setdefault(key, Peer(key))
        for key, peer in list(by_key.items()):
            if key not in voters and not peer.is_connected:
                del by_key[key]
        self._dial()

    async def close(self) -> None:
        """End all streams; returns when all have ended."""
        self._is_open = False
        for accepted in tuple(self._accepted):
            accepted.finish(ServerShuttingDownError(f"controller {self.key.node_id} is shutting down"))
        dialers, self._dialers = list(self._dialers.values()), {}
        await asyncio.gather(*(dialer.close() for dialer in dialers))

    def register(self, listener: Listener) -> None:
        """Serve headrace.v1.Raft on ``listener``, which must be internal; call this before the listener starts."""
        listener.add(raft_pb2_grpc.add_RaftServicer_to_server, self, "headrace.v1.Raft")

    async def Exchange(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve a stream that another controller opens. Raises the error that refuses the stream."""
        stream: ServerStream[Envelope, Envelope] = ServerStream(context)
        accepted = _Accepted(self, stream)
        if not self._is_open:
            raise ServerShuttingDownError(f"controller {self.key.node_id} does not take part in the quorum now; retry")
        self._accepted.add(accepted)
        try:
            await stream.run(accepted)
        finally:
            self._accepted.discard(accepted)

    def hello(self, expected: ReplicaKey | None = None) -> Envelope:
        envelope = Envelope()
        hello = envelope.hello
        hello.cluster_id, hello.address = self.cluster_id, self._address
        wire.write_key(self.key, hello.sender)
        if expected is not None and expected.directory_id != NO_DIRECTORY:
            wire.write_key(expected, hello.expected)
        return envelope

    def greeted(self, envelope: Envelope) -> ReplicaKey:
        """Check a hello; returns the sender's key. Raises InvalidRequestError, InconsistentClusterIdError,
        InvalidVoterKeyError."""
        if not envelope.HasField("hello") or envelope.messages:
            raise InvalidRequestError("a Raft stream must begin with a hello message")
        hello = envelope.hello
        sender = wire.read_key(hello.sender)
        if hello.cluster_id != self.cluster_id:
            raise InconsistentClusterIdError(
                f"controller {sender} is of cluster {hello.cluster_id}, controller {self.key} is of cluster "
                f"{self.cluster_id}: check the addresses in controller.quorum.voters"
            )
        if hello.HasField("expected") and (expected := wire.read_key(hello.expected)) != self.key:
            raise InvalidVoterKeyError(
                f"wrong controller: expected {expected} at this address, this is {self.key}; if its disk was "
                "replaced, remove the old voter and add the new one, else correct the address"
            )
        if sender.node_id == self.key.node_id and sender != self.key:
            raise InvalidVoterKeyError(
                f"two controllers have node.id={sender.node_id}: {sender} and {self.key}; change the node.id of one "
                "controller"
            )
        if hello.address and self.peers.address_of(sender) != hello.address:
            self.peers.addresses[sender] = wire.check_address(hello.address)
            if sender in self._voters:
                self._dial()
        return sender

    def refused(self, who: str, error: HeadraceError) -> None:
        """Log an unexpected node, once for each node."""
        text = f"{who}: {error.code}"
        if text not in self._strangers and len(self._strangers) < _STRANGERS_MAX:
            self._strangers.add(text)
            logger.warning("refused a Raft stream of %s: %s", who, error)

    def joined(self, key: ReplicaKey, stream: Any) -> Peer:
        peer = self.peers.by_key.setdefault(key, Peer(key))
        is_new = not peer.is_connected
        peer.joined(stream)
        if is_new:
            logger.info("controller %s is connected", key)
            self._observe(key)
        return peer

    def left(self, peer: Peer, stream: Any) -> None:
        peer.left(stream)
        if peer.is_connected:
            return
        if peer.key not in self._voters:
            self.peers.by_key.pop(peer.key, None)
            self.peers.addresses.pop(peer.key, None)
        logger.info("controller %s is no longer connected", peer.key)
        self._peer_lost(peer.key)
        self._forget(peer.key)

    def received(self, peer: Peer, envelope: Envelope) -> None:
        for body in wire.read_envelope(envelope):
            self._receive(Message(peer.key, self.key, body))

    def _dial(self) -> None:
        """Connect to exactly the replicas that this controller should be connected to."""
        if not self._is_open:
            return
        wanted: dict[ReplicaKey | str, str] = {}
        for key in self._voters:
            node_id = key.node_id
            address = self.peers.address_of(key) or self._voters.address(node_id) or self._configured.get(node_id, "")
            if key != self.key and address:
                wanted[key] = address
        if self.key not in self._voters:
            wanted.update({address: address for address in self._bootstrap if address not in wanted.values()})
        dialers = self._dialers
        for who, address in wanted.items():
            if address == self._address:
                continue
            if who not in dialers:
                known = dialers.pop(address, None)  # until now the replica may have been known only by its address
                dialers[who] = known or _Dialer(self, address)
            dialers[who].aim(address, who if isinstance(who, ReplicaKey) else None)
        for who in [each for each in dialers if each not in wanted]:
            dialers.pop(who).end()


class _Accepted(StreamHandler[Envelope]):
    """A Raft stream that the other controller opened."""

    def __init__(self, links: PeerLinks, stream: ServerStream[Envelope, Envelope]) -> None:
        self._links = links
        self._stream = stream
        self._peer: Peer | None = None

    def on_request(self, request: Envelope) -> None:
        try:
            if self._peer is None:
                self._greet(request)
            else:
                self._links.received(self._peer, request)
        except HeadraceError as error:
            who = str(self._peer.key) if self._peer else f"controller {request.hello.sender.node_id}"
            self._links.refused(who, error)
            self.finish(error)

    def _greet(self, request: Envelope) -> None:
        if request.HasField("hello"):
            check_claim("Raft/Exchange", request)
        key = self._links.greeted(request)
        self._stream.send(self._links.hello(key), 1)
        if key == self._links.key:  # a bootstrap address leads to this process itself
            self.finish(None)
        else:
            self._peer = self._links.joined(key, self)

    def wake(self) -> None:
        stream, peer = self._stream, self._peer
        if stream.closed or stream.queued_bytes or peer is None:
            # ``on_written`` sends the next envelope. Only one envelope is sent at a time, so an urgent message waits
            # for one envelope at most.
            return
        taken = peer.take(self)
        if taken is not None:
            stream.send(*taken)

    on_written = wake

    def on_closed(self) -> None:
        if self._peer is not None:
            self._links.left(self._peer, self)

    def finish(self, error: HeadraceError | None) -> None:
        self._stream.finish(error)


class _Dialer:
    """Opens one stream after another to a replica or address."""

    def __init__(self, links: PeerLinks, address: str) -> None:
        self._links = links
        self._address = address
        self._expected: ReplicaKey | None = None
        self._stream: Duplex[Envelope, Envelope] | None = None
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"raft stream to {address}")

    def aim(self, address: str, expected: ReplicaKey | None) -> None:
        """Use ``address`` and the expected key from the next attempt on; the present stream stays."""
        self._address, self._expected = address, expected

    def end(self) -> None:
        """Begin to end the stream; the call does not wait for the end."""
        self._ending.set()
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        self.end()
        await self._task

    async def _run(self) -> None:
        backoff = Backoff(first_ms=_RETRY_FIRST_MS, most_ms=_RETRY_MOST_MS)
        outage = Outage(logger, "metadata quorum")
        while not self._ending.is_set():
            wait_s = 0.0
            try:
                await self._converse(outage, backoff)
                return  # the dialled address is this controller's own
            except HeadraceError as error:
                if self._ending.is_set():
                    return
                # UnknownServerError means that gRPC failed internally
                is_there = not (error.retriable or isinstance(error, UnknownServerError))
                wait_s = _REFUSED_MS / 1_000 if is_there else backoff.next_s()
                if not is_there:
                    outage.failed(self._address, error)
                else:
                    self._links.refused(f"this controller to {self._address}", error)
            except Exception:
                logger.exception("the raft stream to %s: unexpected error; reconnecting", self._address)
                wait_s = _REFUSED_MS / 1_000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._ending.wait()

    async def _converse(self, outage: Outage, backoff: Backoff) -> None:
        """Run one stream until it breaks; raises HeadraceError. Returns when the dialed address turns out to be this
        controller's own."""
        links, address, expected = self._links, self._address, self._expected
        stream: Duplex[Envelope, Envelope] = Duplex(
            address,
            ChannelPurpose.RAFT,
            lambda channel: raft_pb2_grpc.RaftStub(channel).Exchange(),  # type: ignore[no-untyped-call]
            links.channels,
        )
        dialed = _Dialed(links, stream)

        async def read() -> None:
            key = links.greeted(await stream.read())
            if key == links.key:
                return
            if expected is not None and key.node_id != expected.node_id:
                raise InvalidVoterKeyError(
                    f"wrong controller at {address}: expected {expected}, found {key}; check controller.quorum.voters"
                )
            outage.over()
            backoff.reset()
            await dialed.read(key)

        self._stream = stream
        try:
            await stream.run(read(), dialed.write(links.hello(expected)))
        finally:
            self._stream = None


class _Dialed:
    """A stream that this controller opened."""

    def __init__(self, links: PeerLinks, stream: Duplex[Envelope, Envelope]) -> None:
        self._links = links
        self._stream = stream
        self._peer: Peer | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def read(self, key: ReplicaKey) -> None:
        """Read messages until the stream ends. Both sides have sent their hello; ``key`` is the other controller's
        key."""
        peer = self._peer = self._links.joined(key, self)
        try:
            while True:
                self._links.received(peer, await self._stream.read())
        finally:  # report the end at once: Raft need not wait until this side has closed the connection, too
            self._links.left(peer, self)

    async def write(self, hello: Envelope) -> None:
        await self._stream.connected()
        await self._stream.write(hello)
        while True:
            self._wake.clear()
            while self._peer is not None and (taken := self._peer.take(self)) is not None:
                await self._stream.write(taken[0])
            await self._wake.wait()
