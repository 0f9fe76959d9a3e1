"""No copy of the metadata is older than it reports. The test uses real controllers, and a network that loses, cuts and
delays messages. Leaders are paused, cut off and killed. The copies are those of the controllers, and those of nodes
that follow a controller.

A copy asks for a barrier (ReadIndex) at the controller it follows, which asks its presumed leader; the answer comes
late, or never. Alternatively, a copy accepts the controller's last barrier and the age of that barrier. The test
records every acknowledgement with its time, and compares every copy with the acknowledgements after every step. Without
the guard, a leader answers without asking a majority, and the test must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace_controller.cluster.requests import AlterConfigs, AlterResource, ConfigOp, OpKind
from headrace_controller.raft import Role
from headrace_core.metadata import ConfigResourceType
from headrace_core.metadata.freshness import Freshness
from tests.worlds.quorum_world import Asked, QuorumWorld

STEPS = 600


@dataclass
class Copy:
    """The applied metadata of a node. ``follows`` is the number of the controller that the node follows; a controller
    follows itself."""

    follows: int
    applied: int = 0
    freshness: Freshness = field(default_factory=Freshness)


@dataclass
class Question:
    """``answered`` is true when the leader has answered and the answer is in transit."""

    copy: Copy
    began_ms: float
    asked: Asked


class Life:
    def __init__(self, seed: int, barrier: Callable[[Life, int], Asked]) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.world = QuorumWorld(3, self.rng)
        self.world.is_cut = lambda message: (
            not self.paused.isdisjoint((message.sender.node_id, message.to.node_id)) or self.rng.random() < 0.05
        )
        self.paused: set[int] = set()
        self._barrier = barrier
        self._questions: list[Question] = []
        self._writes: list[tuple[float, Asked]] = []
        self.acknowledged: list[tuple[float, int]] = []  # when, and the metadata offset
        self.copies = [Copy(number) for number in (1, 2, 3)]
        self.observers = [Copy(self.rng.randint(1, 3)) for _ in range(2)]
        self.proven: dict[
            int, tuple[float, int]
        ] = {}  # the newest barrier that a controller has: when it began, its offset
        self.answered_of_late = 0
        self.checked = 0
        self.world.elect()

    def run(self) -> None:
        """Raise AssertionError if a copy is older than it reports."""
        for step in range(STEPS):
            self._step()
            self._note()
            self._check(step)

    def _step(self) -> None:
        rng, world = self.rng, self.world
        number = rng.randint(1, 3)
        match rng.choices(
            ("time", "write", "ask", "answer", "apply", "pause", "cut", "heal", "kill"),
            (60, 25, 25, 25, 25, 1, 2, 3, 1),
        )[0]:
            case "time":
                world.clock.advance(rng.choice((1, 10, 100)))
                for controller in world.alive():
                    if controller.node_id not in self.paused and controller.until_due_ms() <= 0:
                        world.turn(controller.node_id)
                world.deliver()
            case "write":
                for controller in world.alive():
                    if controller.role is Role.LEADER and controller.node_id not in self.paused:
                        self._writes.append((world.clock.monotonic_ms(), world.ask(controller.node_id, _note(rng))))
            case "ask":
                copy = rng.choice((*self.copies, *self.observers))
                asked = self._ask(copy.follows)
                if not self._is_controllers(copy) and rng.random() < 0.5:
                    self._ask_of_late(copy)
                elif asked is not None:
                    self._questions.append(Question(copy, world.clock.monotonic_ms(), asked))
            case "answer":
                answered = [each for each in self._questions if each.asked.is_answered]
                if answered:
                    question = rng.choice(answered)
                    self._questions.remove(question)
                    if isinstance(question.asked.result, int):
                        question.copy.freshness.confirmed(question.asked.result, question.began_ms)
                        self._note_proven(question, question.asked.result)
            case "apply":
                for observer in self.observers:
                    controller_of = world.nodes[observer.follows].controller
                    if controller_of is None:
                        observer.follows = number
                    elif observer.follows not in self.paused:
                        end = controller_of.image.next_offset
                        observer.applied = rng.randint(observer.applied, max(end, observer.applied))
                        observer.freshness.applied(observer.applied)
            case "pause":
                self.paused = {number}
            case "cut":
                world.isolate(world.leader.node_id if any(each.is_active for each in world.alive()) else number)
            case "heal":
                world.heal()
                self.paused.clear()
            case "kill":
                for node in world.nodes.values():
                    if node.controller is None:
                        world.start(node.node_id)
                        return
                self.paused.discard(number)
                world.kill(number)
                self.copies[number - 1] = Copy(number)  # the copy starts empty, without a barrier
                self.proven.pop(number, None)

    def _ask(self, number: int) -> Asked | None:
        """Controller ``number`` asks the controller that it takes for the leader, if they can reach each other."""
        controller = self.world.nodes[number].controller
        if controller is None or number in self.paused or controller.leader_id < 0:
            return None
        leader = controller.leader_id
        if leader in self.paused or frozenset((number, leader)) in self.world._cuts:
            return None
        return None if self.world.nodes[leader].controller is None else self._barrier(self, leader)

    def _is_controllers(self, copy: Copy) -> bool:
        return any(copy is each for each in self.copies)

    def _note_proven(self, question: Question, offset: int) -> None:
        """A controller keeps its newest barrier."""
        copy = question.copy
        if self._is_controllers(copy):
            self.proven[copy.follows] = max(self.proven.get(copy.follows, (0.0, 0)), (question.began_ms, offset))

    def _ask_of_late(self, copy: Copy) -> None:
        """The followed controller reports its last barrier and that barrier's age; the response may be late, too."""
        if copy.follows in self.proven and copy.follows not in self.paused:
            began_ms, offset = self.proven[copy.follows]
            now_ms = self.world.clock.monotonic_ms()
            age_ms = now_ms - began_ms
            self._questions.append(Question(copy, now_ms - age_ms, Asked([offset])))
            self.answered_of_late += 1

    def _note(self) -> None:
        now_ms = self.world.clock.monotonic_ms()
        for write in tuple(self._writes):
            if write[1].is_answered:
                self._writes.remove(write)
                result = write[1].result
                if hasattr(result, "metadata_offset"):
                    self.acknowledged.append((now_ms, result.metadata_offset))
        for copy in self.copies:
            controller = self.world.nodes[copy.follows].controller
            if controller is not None:
                copy.applied = max(copy.applied, controller.image.next_offset)
                copy.freshness.applied(copy.applied)

    def _check(self, step: int) -> None:
        now_ms = self.world.clock.monotonic_ms()
        for copy in (*self.copies, *self.observers):
            lag = copy.freshness.lag(now_ms)
            if lag.ms is None:
                continue
            for at_ms, offset in self.acknowledged:
                if at_ms < now_ms - lag.ms:
                    self.checked += 1
                    assert offset <= copy.applied, (
                        f"seed {self.seed}, step {step}: {copy} says it is {lag.ms} ms old at {now_ms}, and lacks "
                        f"{offset} of {at_ms}; {self.world.story()}"
                    )


def _note(rng: random.Random) -> AlterConfigs:
    op = ConfigOp(OpKind.SET, "log.retention.ms", str(rng.randrange(1_000_000)))
    return AlterConfigs((AlterResource((ConfigResourceType.BROKER, ""), (op,)),), False)


def _by_a_majority(life: Life, leader: int) -> Asked:
    return life.world.call(life.world[leader].read)


def _by_its_own_word(life: Life, leader: int) -> Asked:
    return Asked([life.world[leader].image.next_offset])


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_no_copy_is_older_than_it_says(first: int) -> None:
    lives = [Life(seed, _by_a_majority) for seed in range(first, first + 10)]
    for life in lives:
        life.run()
    assert sum(life.checked for life in lives) > 10_000
    assert sum(len(life.acknowledged) for life in lives) > 100
    assert sum(life.answered_of_late for life in lives) > 50


def test_leaders_that_confirm_without_a_majority_are_caught() -> None:
    for seed in range(200):
        try:
            Life(seed, _by_its_own_word).run()
        except AssertionError as found:
            assert "lacks" in str(found)  # noqa: PT017
            return
    raise AssertionError("nothing was found in 200 lives: this test cannot fail")
