"""A real cluster with each node in its own process, in which a test can break every part.

Every connection between nodes is routed through ``FaultyNetwork``, and every node's disk can lose power or become slow
(``PowerLossFileSystem``). Clients connect to coordinators through the network, and to brokers directly (or through the
network, too: ``cut_clients``).

    controllers and brokers are "controller-1", "broker-2", ... in the network's rules; clients are "client"
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headrace import Admin, NewTopic, TopicPartition
from headrace.cluster_models import PartitionDescription
from headrace.engine.security import channels_of
from headrace.errors import HeadraceError
from headrace.settings import ADMIN, resolve
from headrace_core.rpc.channel import ChannelPurpose
from headrace_core.testing.power_loss import Dials, Loss, lose_power
from headrace_core.testing.tcp_proxy import FaultyNetwork
from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc
from headrace_tools.local import ports, security
from headrace_tools.local.directory import ClusterDirectory, Topology
from headrace_tools.local.state import Life, Node
from tests.system import failing_fsync
from tests.worlds import waiting

import grpc  # isort: skip

#: Whether the nodes have TLS, SASL and ACLs, as `headrace up --secure` makes them (one day of two in CI).
SECURE = os.environ.get("HEADRACE_FAULTS_SECURE", "0") == "1"
#: Time limits are multiplied by this factor in CI, whose machine is slow and shared.
SLOW_MACHINE = 3 if os.environ.get("CI") == "true" else 1
#: Timeout for conditions that a healthy cluster meets in a second or two. The machine of the CI is slow, and other jobs
#: share it.
TIMEOUT_S = 120.0
eventually = partial(waiting.until, within_s=TIMEOUT_S, pause_s=0.05)


def check_silence(what: str, found_s: float, bound_s: float) -> None:
    """Fail when a silence was longer than its bound in docs/faults.md."""
    allowed_s = bound_s * SLOW_MACHINE
    assert found_s <= allowed_s, f"{what} for {found_s:.2f} s, allowed are {allowed_s:g} s"


class _Directory(ClusterDirectory):
    """The network owns the internal ports, and the client ports of nodes with a role in ``behind``. The network listens
    on the ports of a node before a node starts, and while a node is dead."""

    def __init__(self, directory: Path, pids: dict[str, int], behind: Collection[str], **how: Any) -> None:
        super().__init__(directory, **how)
        self._pids = pids
        self._behind = behind

    def _spawn(self, node: Node, log: Path) -> Life:
        life = super()._spawn(node, log)
        self._pids[node.name] = life.pid
        return life

    def _check_ports(self, node: Node) -> None:
        if node.role not in self._behind:
            assert ports.is_free(node.port, node.host), f"{node.name} needs {node.port}"


class FaultyCluster:
    """A ``with`` block starts and ends the cluster. ``config`` are configuration keys of every node. ``of_node`` are
    additional keys by node name, which have precedence. ``cut_clients``: connections of clients to brokers go through
    the network, too. With HEADRACE_FAULTS_SECURE=1 everything is encrypted and authorized, and clients need
    ``client``."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        controllers: int = 3,
        coordinators: int = 0,
        config: Mapping[str, str] | None = None,
        of_node: Mapping[str, Mapping[str, str]] | None = None,
        rng: random.Random | None = None,
        small_disk: str | None = None,
        cut_clients: bool = False,
    ) -> None:
        self.directory = directory
        #: The node whose data directory is a small file system of its own, if there is one.
        self.small_disk = small_disk
        self.network = FaultyNetwork(self._who_opened)
        self.rng = rng or random.Random(0)
        self._of_node = of_node or {}
        #: The roles of nodes whose client listeners are behind the network.
        self._behind = ("coordinator", "broker") if cut_clients else ("coordinator",)
        self._topology = Topology(
            brokers=brokers,
            controllers=controllers,
            coordinators=coordinators,
            config=dict(config or {}),
            secure=SECURE,
        )
        self._preload = failing_fsync.compiled(directory / "preload")
        #: The pid of each node's latest process.
        self._pids: dict[str, int] = {}
        #: The owner of each socket, by inode, as it was at the time ``_looked_at``.
        self._openers: dict[int, str] = {}
        self._openers_lock, self._looked_at = threading.Lock(), 0.0
        self._local = _Directory(
            directory, self._pids, self._behind, start_timeout_s=TIMEOUT_S, stop_timeout_s=60, command=self._command
        )
        self._ports: dict[str, int] = {}
        self._client_ports: dict[str, int] = {}
        self._paused: set[str] = set()
        self._admin: Admin | None = None

    # -- life

    def __enter__(self) -> FaultyCluster:
        try:
            self._local.up(self._topology, exclusive=True)
        except BaseException:
            self.network.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if self._admin is not None:
                self._admin.close()
            for name in [*self._paused]:
                self.resume(name)
            if kind is None:
                self.network.heal()
                self._local.down()
            else:  # only the data that the nodes have written until now matters
                for node in self._local.state().nodes:
                    self._local.kill(node.role, node.id)
        finally:
            self.network.close()

    def _command(self, directory: Path, node: Node) -> list[str]:
        if node.name not in self._ports:
            taken = [port for each in self._local.state().nodes for port in (each.port, each.internal_port)]
            (self._ports[node.name],) = ports.pick(
                1, avoid=[*taken, *self._ports.values(), *self._client_ports.values()]
            )
            self.network.listen(node.name, self._ports[node.name], listen_port=node.internal_port)
        inside = self._ports[node.name]
        outside = self._client_port(node) if node.role in self._behind else node.port
        keys = {
            "listeners": f"client://{node.host}:{outside},internal://{node.host}:{inside}",
            "advertised.listeners": f"client://{node.host}:{node.port},internal://{node.host}:{node.internal_port}",
            **self._of_node.get(node.name, {}),
        }
        program = str(Path(__file__).with_name("faulty_node.py"))
        config = str(directory / "config" / f"{node.name}.properties")
        command = [sys.executable, "-P", program, node.role, str(self.journal(node.name)), "--config", config]
        if self._preload is not None and node.role == "broker":
            command = [*failing_fsync.prefix(self._preload, self.journal(node.name)), *command]
        return command + [part for key, value in keys.items() for part in ("-o", f"{key}={value}")]

    def _client_port(self, node: Node) -> int:
        """The network's port for a node's client listener; the network can break a client's connections."""
        if node.name not in self._client_ports:
            taken = [port for each in self._local.state().nodes for port in (each.port, each.internal_port)]
            (port,) = ports.pick(1, avoid=[*taken, *self._ports.values(), *self._client_ports.values()])
            self._client_ports[node.name] = port
            self.network.listen(node.name, port, listen_port=node.port)
        return self._client_ports[node.name]

    def names(self, name: str, pid: int) -> None:
        """Give this process a name, so that the rules of the network apply to the connections that it opens."""
        self._pids[name] = pid

    def _who_opened(self, port: int, to: int) -> str:
        """The name of the node that opened a connection from this local port; "client" if no node did."""
        arrived = time.monotonic()
        inode = _inode_of(port, to)
        with self._openers_lock:  # one look at all nodes serves all connections that arrived before it
            if inode and inode not in self._openers and self._looked_at < arrived:
                self._looked_at = time.monotonic()
                self._openers = {each: name for name, pid in list(self._pids.items()) for each in _sockets_of(pid)}
            return self._openers.get(inode, "client")

    # -- looking

    @property
    def bootstrap(self) -> str:
        """The addresses of brokers that are alive and not paused; of all brokers, if no broker is alive."""
        brokers = self._local.state().of_role("broker")
        living = [each for each in brokers if each.alive() and each.name not in self._paused]
        return ",".join(each.address for each in living or brokers)

    @property
    def everybody(self) -> str:
        """The addresses of all brokers, dead or alive: bootstrap servers for a client that must survive the failure of
        any broker."""
        return ",".join(each.address for each in self._local.state().of_role("broker"))

    @property
    def login(self) -> dict[str, str]:
        """The keys by which a client authenticates; none without security."""
        return security.client_keys(self.directory) if SECURE else {}

    @property
    def client(self) -> dict[str, str]:
        """The keys of a client that must survive the failure of any broker."""
        return {"bootstrap.servers": self.everybody, **self.login}

    @property
    def broker_ids(self) -> list[int]:
        return [each.id for each in self._local.state().of_role("broker")]

    @property
    def controller_ids(self) -> list[int]:
        return [each.id for each in self._local.state().of_role("controller")]

    @property
    def coordinator_ids(self) -> list[int]:
        return [each.id for each in self._local.state().of_role("coordinator")]

    def dead(self) -> list[str]:
        return [each.name for each in self._local.state().nodes if not each.alive()]

    def node(self, name: str) -> Node:
        role, _, number = name.rpartition("-")
        return self._local.state().node(role, int(number))

    def pid(self, name: str) -> int:
        found = self.node(name).pid()
        assert found is not None, f"{name} is dead"
        return found

    def data(self, name: str) -> Path:
        """The log directory of the node."""
        return Path(self.node(name).data_dirs[0])

    def journal(self, name: str) -> Path:
        """The file through which a test controls the node's disk, including a power loss."""
        return self.directory / "journals" / name

    def log(self, name: str) -> str:
        role, _, number = name.rpartition("-")
        return self._local.log_path(role, int(number)).read_text(errors="replace")

    def tails(self, lines: int = 25) -> str:
        """The last lines of every node's log, for the report of a failure."""
        parts = []
        for node in self._local.state().nodes:
            tail = "\n".join(self.log(node.name).splitlines()[-lines:])
            parts.append(f"---- {node.name} ({'alive' if node.alive() else 'dead'})\n{tail}")
        return "\n".join(parts)

    def until_logged(self, name: str, text: str, *, since: int, within_s: float = TIMEOUT_S) -> None:
        """Wait until a node has logged ``text`` (in any case) after the first ``since`` characters of its log."""
        eventually(
            lambda: text.lower() in self.log(name)[since:].lower(),
            lambda: f"{name} says nothing of {text!r}",
            within_s=within_s,
        )

    def ask(self, question: Callable[[Admin], Any]) -> Any:
        """The answer of any live broker to an admin call, or None if the call fails. After None, the caller tries
        again."""
        try:
            if self._admin is None:
                self._admin = Admin(self.client)
            return question(self._admin)
        except HeadraceError:
            return None

    def describe(self, topic: str) -> list[PartitionDescription]:
        """The partitions of the topic according to the current metadata."""
        found = eventually(
            lambda: self.ask(lambda admin: admin.describe_topics([topic], timeout=10)), f"{topic} is not described"
        )
        return sorted(found[0].partitions, key=lambda each: each.partition)

    def leader(self, topic: str, partition: int = 0) -> str:
        """The name of the partition's leader; waits until there is a live leader."""

        def found() -> str:
            leader = self.describe(topic)[partition].leader
            return f"broker-{leader}" if leader >= 0 and self.node(f"broker-{leader}").alive() else ""

        name: str = eventually(found, f"{topic}-{partition} has no leader")
        return name

    def preferred_leader(self, topic: str, partition: int = 0) -> str:
        """The first replica of the partition; waits until it is the leader. Once the first replica leads, the
        leadership does not change without a failure. (A broker that has returned gets its leaderships back a moment
        after its replicas are in sync.)"""

        def leads() -> bool:
            found = self.describe(topic)[partition]
            if found.leader != found.replicas[0]:
                self.ask(lambda admin: admin.elect_leaders(partitions=[TopicPartition(topic, partition)], timeout=10))
            return found.leader == found.replicas[0]

        eventually(leads, f"{topic}-{partition} is not led by its first replica")
        return self.leader(topic, partition)

    def followers(self, topic: str, partition: int = 0) -> list[str]:
        leader = self.leader(topic, partition)
        return [f"broker-{each}" for each in self.describe(topic)[partition].replicas if f"broker-{each}" != leader]

    def shard_owners(self, topic: str) -> list[int]:
        """Return the coordinator of each partition of an internal topic; -1: the shard has no coordinator."""

        def owners() -> list[int] | None:
            try:
                described = asyncio.run(self._metadata(topic))
            except (grpc.RpcError, HeadraceError):
                return None
            return [each.coordinator_id for each in described.topics[0].partitions]

        found: list[int] = eventually(owners, "no broker answers")
        return found

    async def _metadata(self, topic: str) -> Any:
        channels = channels_of(resolve(ADMIN, self.client, {}))
        channel = channels.open(self.bootstrap.split(",")[0], ChannelPurpose.CONTROL)
        try:
            stub: Any = metadata_pb2_grpc.MetadataStub  # type: ignore[no-untyped-call]
            return await stub(channel).GetMetadata(metadata_pb2.MetadataRequest(topics=[topic]), timeout=10)
        finally:
            await channel.close()

    def controller_leader(self) -> str:
        quorum = eventually(
            lambda: self.ask(lambda admin: admin.describe_quorum(timeout=10)), "no controller answers for the quorum"
        )
        return f"controller-{quorum.leader_id}"

    def make_topic(self, name: str, partitions: int = 1, *, copies: int = 3, **config: str) -> None:
        """Create a topic, and wait until every replica is in sync."""
        wanted = NewTopic(name, partitions=partitions, replication_factor=copies, config=config)
        eventually(lambda: self.ask(lambda admin: admin.create_topics([wanted], timeout=20)), f"{name} is not made")
        self.until_in_sync(name)

    def begin_reassignment(self, wanted: Mapping[TopicPartition, list[int]]) -> None:
        """Request the given replicas of partitions, the preferred leader first."""
        eventually(
            lambda: self.ask(lambda admin: admin.alter_partition_reassignments(wanted) or True),
            "the reassignment is not begun",
        )

    def until_reassigned(self, wanted: Mapping[TopicPartition, list[int]]) -> None:
        """Wait until each partition has the given replicas and no other replicas."""

        def replicas(partition: TopicPartition) -> list[int]:
            return list(self.describe(partition.topic)[partition.partition].replicas)

        eventually(
            lambda: all(replicas(partition) == ids for partition, ids in wanted.items()),
            lambda: f"the reassignment does not end: {[(each, replicas(each)) for each in wanted]}",
        )

    def delete_topic(self, name: str) -> None:
        self.ask(lambda admin: admin.delete_topics([name], timeout=20))

    def until_in_sync(self, topic: str, *, within_s: float = TIMEOUT_S) -> None:
        """Wait until every replica of every partition is in sync, and every partition has a leader."""

        def is_whole() -> bool:
            return all(each.leader >= 0 and set(each.isr) == set(each.replicas) for each in self.describe(topic))

        eventually(is_whole, lambda: f"{topic} is not whole: {self.describe(topic)}", within_s=within_s)

    def until_out_of_sync(self, topic: str, name: str, partition: int = 0, *, within_s: float = TIMEOUT_S) -> None:
        broker = int(name.rpartition("-")[2])
        eventually(
            lambda: broker not in self.describe(topic)[partition].isr,
            lambda: f"{name} is in sync still: {self.describe(topic)}",
            within_s=within_s,
        )

    # -- faults

    def kill(self, *names: str) -> None:
        """Kill all the given nodes at once with kill -9. The page cache of the machine stays."""
        for name in names:
            self._signal(name, signal.SIGKILL)
        for name in names:
            node = self.node(name)
            self._local.kill(node.role, node.id)  # waits
            self._paused.discard(name)

    def lose_power(self, *names: str, loss: Loss = Loss.ALL) -> int:
        """Let all the given nodes lose power at once; return how many unforced bytes were lost."""
        self.kill(*names)
        return sum(lose_power(self.journal(name), loss=loss, rng=self.rng) for name in names)

    def pause(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        self._paused.discard(name)
        self._signal(name, signal.SIGCONT)

    def stop(self, name: str) -> None:
        """SIGTERM, and wait."""
        self._signal(name, signal.SIGTERM)
        eventually(lambda: not self.node(name).alive(), f"{name} does not stop")

    def start(self, *names: str) -> None:
        """Start dead nodes; return when they serve. Without names, start all dead nodes at once."""
        if not names or set(names) == set(self.dead()):
            self._local.up(Topology())
            return
        for name in names:
            node = self.node(name)
            self._local.restart(node.role, node.id)

    def restart(self, name: str) -> None:
        """Stop the node cleanly and start it again."""
        self.stop(name)
        self.start(name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        node = self.node(name)
        if node.process is not None:
            node.process.signal(number)

    def wipe(self, name: str) -> None:
        """Replace the disk of a dead node by an empty one, which the next start formats."""
        assert not self.node(name).alive(), f"{name} is alive"
        for each in self.data(name).iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
        shutil.rmtree(self.journal(name), ignore_errors=True)

    @contextmanager
    def slow_disk(self, name: str, sync_delay_ms: float) -> Iterator[None]:
        """Let each sync of the node take this much longer during a ``with`` block."""
        Dials(sync_delay_ms=sync_delay_ms).write(self.journal(name))
        try:
            yield
        finally:
            Dials().write(self.journal(name))

    @contextmanager
    def short_of_space(self, *names: str) -> Iterator[None]:
        """Let the disks of the nodes report no free space during a ``with`` block. Without root, a test cannot fill
        them."""
        for name in names:
            Dials(free_bytes=0).write(self.journal(name))
        try:
            yield
        finally:
            for name in names:
                Dials().write(self.journal(name))

    @property
    def can_fail_fsync(self) -> bool:
        return self._preload is not None

    def fail_fsync(self, name: str, text: str, *, nth: int = 1) -> Path:
        """Let a broker's ``nth`` fdatasync or fsync of a file whose path contains ``text`` fail with EIO; the returned
        file disappears when the failure has happened."""
        return failing_fsync.fail(self.journal(name), text, nth=nth)

    # -- the replicas' files

    def replica(self, name: str, topic: str, partition: int) -> Path:
        return self.data(name) / f"{topic}-{partition}"

    def replica_bytes(self, name: str, topic: str, partition: int) -> bytes:
        """The whole log of a replica, from its first segment on; b"" if the replica does not exist."""
        segments = sorted(self.replica(name, topic, partition).glob("*.log"))
        return b"".join(segment.read_bytes() for segment in segments)

    def until_identical(self, topic: str, partitions: Collection[int], *, within_s: float = TIMEOUT_S) -> None:
        """Wait until the replicas of each partition are equal, byte for byte; raises SafetyViolation if they do not
        become equal."""
        for description in self.describe(topic):
            if description.partition not in partitions:
                continue
            names = [f"broker-{each}" for each in description.replicas]

            def logs(names: list[str] = names, partition: int = description.partition) -> list[bytes]:
                return [self.replica_bytes(name, topic, partition) for name in names]

            try:
                eventually(lambda logs=logs: len(set(logs())) == 1, "the replicas are the same", within_s=within_s)
            except NotInTimeError as never:  # (all replicas are in sync, and clients send no more records)
                differences = _differences(dict(zip(names, logs(), strict=True)))
                raise SafetyViolation(
                    f"the replicas of {topic}-{description.partition} differ: {differences}"
                ) from never


def _differences(logs: Mapping[str, bytes]) -> str:
    first_name, first = next(iter(logs.items()))
    parts = []
    for name, data in logs.items():
        at = next(
            (at for at, (a, b) in enumerate(zip(first, data, strict=False)) if a != b), min(len(first), len(data))
        )
        same = "the same" if data == first else f"differs from {first_name} at byte {at}"
        parts.append(f"{name} has {len(data)} bytes, {same}")
    return "; ".join(parts)


def _sockets_of(pid: int) -> Iterator[int]:
    """The inodes of a process's sockets; none of a dead process."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:["):
            yield int(link[8:-1])


_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
_ANY_COOKIE = 0xFFFFFFFF


def _inode_of(port: int, to: int) -> int:
    """The inode of the socket that is connected from ``port`` to ``to``, both on 127.0.0.1; 0 if there is no such
    socket. The lookup uses sock_diag(7), because reading /proc/net/tcp would list all connections each time."""
    host = socket.inet_aton("127.0.0.1") + bytes(12)
    ends = struct.pack(">HH", port, to) + host + host + struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE)
    question = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + question)
        answer = netlink.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return 0
    inode: int = struct.unpack_from("=I", answer, _HEADER.size + 4 + len(ends) + 16)[0]
    return inode
