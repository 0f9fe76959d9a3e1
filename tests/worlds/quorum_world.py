"""Several controllers without a network, which the test drives: each has a disk in memory, and all share one clock.

world = QuorumWorld(3, rng)
world.elect()                      -> the leader's node id
asked = world.ask(1, request)      -> its outcome: .result is finally an Answer or a HeadraceError
world.settle()                     do all work that is due at the present time
world.pass_ms(2_000)               ticks
world.cut(1, 2) .heal() .kill(1) .restart(1) .wipe(1)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import CreateTopics, Heartbeat, NewTopic, RegisterBroker, Request
from headrace_controller.quorum_controller import QuorumController, QuorumSettings
from headrace_controller.raft import Message, ReplicaKey, Role, VoterSet
from headrace_controller.storage import MetadataStorage, write_first_voters
from headrace_controller.waiting import Answer
from headrace_core.errors import HeadraceError
from headrace_core.metadata import BrokerEndpoint, MetadataDelta, MetadataImage
from headrace_core.node.meta_properties import format_directories, read_meta
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.worlds.cluster_world import CLUSTER, id16

ROOT = "/data"
TICK_MS = 100


@dataclass
class Asked:
    """The outcome of a request to a controller."""

    results: list[Any] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        return bool(self.results)

    @property
    def result(self) -> Any:
        assert len(self.results) == 1, f"answered {len(self.results)} times: {self.results}"
        return self.results[0]

    @property
    def answer(self) -> Answer:
        assert isinstance(self.result, Answer), f"refused: {self.result!r}"
        return self.result


class Node:
    """One controller and its disk."""

    def __init__(self, node_id: int, fs: CrashingFileSystem) -> None:
        self.node_id = node_id
        self.fs = fs
        self.storage: MetadataStorage | None = None
        self.controller: QuorumController | None = None
        self.published: list[tuple[MetadataImage, MetadataDelta]] = []
        self.lives = 0


class QuorumWorld:
    """The controllers and their network (see the module's docstring)."""

    def __init__(
        self,
        count: int,
        rng: random.Random,
        *,
        settings: QuorumSettings | None = None,
        cluster: ClusterSettings | None = None,
        start: bool = True,
        draw_of: Callable[[int], Callable[[int], int]] | None = None,
    ) -> None:
        self.rng = rng
        self.draw_of = draw_of or (lambda number: rng.randrange)
        self.clock = ManualClock()
        self.settings = settings or QuorumSettings()
        self.cluster = cluster or ClusterSettings()
        self.network: deque[Message] = deque()
        self.is_cut: Callable[[Message], bool] = lambda message: False
        self._cuts: set[frozenset[int]] = set()
        self.nodes = {number: Node(number, CrashingFileSystem()) for number in range(1, count + 1)}
        for node in self.nodes.values():
            self.format(node)
        self.first_voters = VoterSet.of(
            (self.key(number) for number in self.nodes), {number: f"host:{number}" for number in self.nodes}
        )
        for node in self.nodes.values():
            write_first_voters(node.fs, ROOT, self.first_voters)
            if start:
                self.start(node.node_id)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def format(self, node: Node) -> None:
        format_directories([ROOT], cluster_id=CLUSTER, node_id=node.node_id, fs=node.fs)

    def key(self, number: int) -> ReplicaKey:
        """The replica key of a node: its id and the id of its current disk."""
        return ReplicaKey(number, read_meta(ROOT, fs=self.nodes[number].fs).directory_id)

    def start(self, number: int) -> QuorumController:
        node = self.nodes[number]
        node.lives += 1
        storage = MetadataStorage.open(node.fs, ROOT, clock=self.clock, cluster_id=CLUSTER, node_id=number)
        ids = random.Random(1_000 * number + node.lives)
        controller = QuorumController(
            ClusterCore(self.cluster, new_id=lambda: ids.randbytes(16)),
            storage,
            node_id=number,
            cluster_id=CLUSTER,
            clock=self.clock,
            draw=self.draw_of(number),
            settings=self.settings,
            send=self.network.extend,
        )
        node.published = []
        controller.subscribe(lambda image, delta: node.published.append((image, delta)))
        controller.start()
        node.storage, node.controller = storage, controller
        return controller

    def stop(self, number: int, error: HeadraceError) -> None:
        """Stop the controller cleanly."""
        node = self.nodes[number]
        self[number].fail_all(error)
        assert node.storage is not None
        node.storage.close()
        node.storage = node.controller = None

    def kill(self, number: int, loss: Loss = Loss.ALL) -> None:
        """Simulate a power loss of the controller."""
        node = self.nodes[number]
        node.fs.crash(self.rng, loss)
        node.storage = node.controller = None
        self.lost(number)

    def lost(self, number: int) -> None:
        """Let the other controllers notice that the node's connections have broken."""
        for other in self.alive():
            if other.node_id != number and other.voters.find(number) is not None:
                other.peer_lost(other.voters.find(number) or self.key(number))

    def add_node(self, number: int) -> QuorumController:
        """Add a controller that is not a voter."""
        node = self.nodes[number] = Node(number, CrashingFileSystem())
        self.format(node)
        write_first_voters(node.fs, ROOT, VoterSet.of([]))
        return self.start(number)

    def __getitem__(self, number: int) -> QuorumController:
        controller = self.nodes[number].controller
        assert controller is not None, f"controller {number} is dead"
        return controller

    def alive(self) -> list[QuorumController]:
        return [node.controller for node in self.nodes.values() if node.controller is not None]

    # -- the network --------------------------------------------------------------------------------------------------

    def cut(self, one: int, other: int) -> None:
        self._cuts.add(frozenset((one, other)))

    def isolate(self, number: int) -> None:
        for other in self.nodes:
            if other != number:
                self.cut(number, other)

    def heal(self) -> None:
        self._cuts.clear()

    def deliver(self) -> None:
        """Deliver all messages that are in flight."""
        for _ in range(len(self.network)):
            message = self.network.popleft()
            if frozenset((message.sender.node_id, message.to.node_id)) in self._cuts or self.is_cut(message):
                continue
            node = self.nodes.get(message.to.node_id)
            if node is not None and node.controller is not None:
                node.controller.receive(message)

    # -- time ---------------------------------------------------------------------------------------------------------

    def turn(self, number: int) -> None:
        controller = self[number]
        if controller.begin():
            controller.persist()
        controller.finish()

    def settle(self) -> None:
        """Let controllers take their turns and deliver messages, until no work remains that is due now."""
        for _ in range(10_000):
            due = [each for each in self.alive() if each.until_due_ms() <= 0]
            if not due and not self.network:
                return
            for controller in due:
                self.turn(controller.node_id)
            self.deliver()
        raise AssertionError("the controllers never become idle")

    def pass_ms(self, ms: int) -> None:
        """Advance the time tick by tick; all controllers do the work that is due."""
        for _ in range(0, ms, TICK_MS):
            self.clock.advance(TICK_MS)
            self.settle()

    def until(self, condition: Callable[[], bool], ms: int = 20_000) -> None:
        self.settle()
        for _ in range(0, ms, TICK_MS):
            if condition():
                return
            self.pass_ms(TICK_MS)
        raise AssertionError(f"not true within {ms} ms: {self.story()}")

    def story(self) -> str:
        return "; ".join(
            f"{each.node_id}: {each.role.value} in {each.term}, applied {each.image.next_offset}, "
            f"log to {each.raft.log_end_offset}, leader {each.leader_id}"
            for each in self.alive()
        )

    # -- actions -----------------------------------------------------------------------------------------

    @property
    def leader(self) -> QuorumController:
        """The active controller with the highest term."""
        return max((each for each in self.alive() if each.is_active), key=lambda each: each.term)

    def elect(self) -> QuorumController:
        self.until(lambda: any(each.is_active for each in self.alive()))
        self.settle()
        return self.leader

    def elect_other_than(self, number: int) -> QuorumController:
        self.until(lambda: any(each.is_active and each.node_id != number for each in self.alive()))
        self.settle()
        return next(each for each in self.alive() if each.is_active and each.node_id != number)

    def ask(self, number: int, request: Request) -> Asked:
        asked = Asked()
        self[number].submit(request, asked.results.append)
        return asked

    def call(self, method: Callable[..., None], *arguments: Any) -> Asked:
        """Call a controller method that reports its result later, such as ``read`` or ``add_voter``."""
        asked = Asked()
        method(*arguments, asked.results.append)
        return asked

    def do(self, request: Request) -> Answer:
        """Send a request to the leader, and wait for its answer."""
        asked = self.ask(self.leader.node_id, request)
        self.settle()
        return asked.answer

    def create(self, *names: str) -> Answer:
        return self.do(create(*names))

    def live_broker(self, number: int = 1) -> None:
        """The ids of the registered and unfenced brokers."""
        answer = self.do(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=id16(1_000 * number),
                directory_ids=(id16(number),),
                endpoints=(BrokerEndpoint("client", "h", number),),
            )
        )
        self.do(
            Heartbeat(
                broker_id=answer.reply.broker_id,
                broker_epoch=answer.reply.broker_epoch,
                metadata_offset=answer.metadata_offset,
            )
        )

    def make_snapshots(self) -> None:
        """Let each controller make a snapshot of its applied metadata, if there is anything new."""
        for controller in self.alive():
            job = controller.snapshot_due()
            if job is not None:
                job.run()
                controller.snapshot_done(job)
        self.settle()

    def snapshots(self, number: int) -> int:
        """The number of snapshots on a node's disk, without the file of the first voters."""
        names = [path.rpartition("/")[2] for path in self.nodes[number].fs.files()]
        return sum(name.endswith(".checkpoint") and int(name[:20]) > 0 for name in names)

    def run_until_crash(self, ms: int) -> bool:
        """Advance the time; return whether a controller has crashed."""
        try:
            self.pass_ms(ms)
        except SimulatedCrash:
            return True
        return False

    def register_until_deposed(self, number: int) -> Asked:
        """Send the leader requests that may use the disk's reserve, until the leader has to give up its leadership;
        return the last request."""
        for life in range(1, 10_000):
            asked = self.ask(
                number,
                RegisterBroker(
                    cluster_id=CLUSTER,
                    incarnation_id=id16(50_000 + life),
                    directory_ids=(id16(50_000 + life),),
                    endpoints=(BrokerEndpoint("client", "h", 1),),
                ),
            )
            self.settle()
            if not self[number].is_active:
                return asked
        raise AssertionError("the disk never became full")

    def topics(self, number: int) -> list[str]:
        return sorted(self[number].image.topic_ids)

    def logs(self) -> dict[int, bytes]:
        """The whole log of each controller, as stored on its disk."""
        return {
            number: b"".join(content for path, content in sorted(node.fs.files().items()) if path.endswith(".log"))
            for number, node in self.nodes.items()
        }


def create(*names: str) -> CreateTopics:
    return CreateTopics(tuple(NewTopic(name=name) for name in names))


def followers(world: QuorumWorld) -> list[QuorumController]:
    return [each for each in world.alive() if each.role is not Role.LEADER]


def bodies(messages: Sequence[Message]) -> list[str]:
    return [type(message.body).__name__ for message in messages]
