"""Administrators that create, alter and delete through the controller that they take for the leader, and remember the
responses.

Each request writes a unique value: a name of a topic, a number as a configuration value, or a principal of an ACL. The
committed log therefore shows the outcome of each request (``marks_of``), and the history compares it with the response.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.acls import acl_id
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    ConfigOp,
    CreateAcls,
    CreatePartitions,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    OpKind,
    Request,
)
from headrace_controller.quorum_controller import Answer, QuorumController
from headrace_core.errors import HeadraceError, NotControllerError, UnknownServerError
from headrace_core.metadata import (
    ConfigRecord,
    ConfigResourceType,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_core.metadata.records import AclRecord, RemoveAclRecord
from headrace_core.security.acl import AclFilter
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

#: A client stops waiting for a response after this time.
TIMEOUT_MS = 1_500.0
_TOPICS_MAX, _ACLS_MAX = 12, 6


def marks_of(record: MetadataRecord) -> Hashable | None:
    """The administrator that requested the write in a committed record."""
    if isinstance(record, ConfigRecord):
        return ("config", record.value) if record.value is not None else None
    if isinstance(record, TopicRecord):
        return ("topic", record.name)
    if isinstance(record, RemoveTopicRecord):
        return ("delete", record.topic_id)
    if isinstance(record, PartitionRecord):
        return ("partition", record.topic_id, record.partition)
    if isinstance(record, AclRecord):
        return ("acl", record.principal)
    if isinstance(record, RemoveAclRecord):
        return ("no acl", record.acl_id)
    return None


class Read:
    """A call that is no request of the cluster: a linearizable read."""

    def __init__(self, world: ControllersWorld, answered: Callable[[Any], None], sender: int) -> None:
        self.world = world
        self.answered = answered
        self.sender = sender

    def act(self, host: ControllerHost, controller: QuorumController) -> None:
        world = self.world
        must_see = max(world.checks.committed, world.checks.reads.begin())

        def done(result: Any) -> None:
            def look() -> None:
                if isinstance(result, int):
                    world.count("state", "read served")
                    if controller.image.next_offset < result:
                        raise Violation(
                            "reads",
                            f"{host} serves a read as of {result}, but its image ends at "
                            f"{controller.image.next_offset}",
                        )
                    world.checks.read_served(must_see, result, str(host))
                elif not isinstance(result, HeadraceError):
                    raise Violation("answers", f"{host} answers a read with {result!r}")

            world.when_checked(look)
            world.calls.send(host.node_id, self.sender, lambda: self.answered(result))

        host.guarded(lambda: controller.read(done))


class AdminClient:
    """Sends its requests one after the other, a few at a time, each to the controller that it takes for the leader."""

    def __init__(self, world: ControllersWorld, number: int) -> None:
        from tests.simulation.sim_world import CLIENT_ADDRESS

        self.world = world
        self.number = number
        self.address = CLIENT_ADDRESS + number
        self.rng = random.Random(f"{world.plan.seed} client {number}")
        self.target = self.rng.randrange(world.plan.voters) + 1
        self.is_resting = False
        self._knows_the_leader = True
        self._written = 0
        self._creating = 0
        self._topics: dict[str, tuple[bytes, int]] = {}
        self._acls: dict[str, AclRecord] = {}  # by principal

    def __str__(self) -> str:
        return f"admin {self.number + 1}"

    def begin(self) -> None:
        self.world.scheduler.after(self.rng.random() * 300.0, self._again)

    def _again(self) -> None:
        if self.is_resting:
            return
        rng = self.rng
        for _ in range(rng.choice((4, 12, 24, 32)) if self._knows_the_leader else 1):
            if rng.random() < 0.1:
                self._read()
            else:
                self._write()
        self.world.scheduler.after(rng.expovariate(1.0) * self.world.plan.rest_ms + 1.0, self._again)

    # -- reads --------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self.world.calls.send(self.address, self.target, Read(self.world, self._follow_hint, self.address))

    def write_one(self) -> None:
        leader = self.world.leader()
        if leader is not None:
            self.target = leader.node_id
        self._write()

    # -- writes -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        draw, topics = self.rng.random(), self._topics
        may_create = self._creating < 3 and len(topics) < _TOPICS_MAX
        if may_create and (len(topics) < 2 or draw < 0.08):
            self._create_topic()
        elif not topics:
            self._alter_config()
        elif draw < 0.14 and len(topics) > 3:
            self._delete_topic()
        elif draw < 0.18:
            self._more_partitions()
        elif draw < 0.24:
            self._change_acls()
        else:
            self._alter_config()

    def _unique(self) -> int:
        self._written += 1
        return 1_000_000 * (self.number + 1) + self._written

    def _create_topic(self) -> None:
        name = f"topic-{self._unique()}"
        partitions = self.rng.choice((1, 2, 3))
        factor = self.rng.choice((1, 2, 3, 3))
        new = NewTopic(name=name, partitions=partitions, replication_factor=factor)

        self._creating += 1
        self.world.scheduler.after(400.0, self._tried)

        def created(answer: Answer) -> None:
            self._topics[name] = (answer.reply[0].topic_id, partitions)

        self.ask(CreateTopics((new,)), ("topic", name), created)

    def _tried(self) -> None:
        """The creation request is over: the object exists now, or its creation will be requested again."""
        self._creating -= 1

    def _delete_topic(self) -> None:
        name = self.rng.choice(list(self._topics))
        topic_id, _ = self._topics.pop(name)  # request it only once, with any outcome
        self.ask(DeleteTopics((name,)), ("delete", topic_id), lambda answer: None)

    def _more_partitions(self) -> None:
        name = self.rng.choice(list(self._topics))
        topic_id, count = self._topics[name]
        if count >= 5:
            return
        self._topics[name] = (topic_id, 99)  # do not request it again, unless the first request is known to be done

        def grown(answer: Answer) -> None:
            if name in self._topics:
                self._topics[name] = (topic_id, count + 1)

        self.ask(
            CreatePartitions((MorePartitions(topic=name, total=count + 1),)), ("partition", topic_id, count), grown
        )

    def _alter_config(self) -> None:
        value = str(self._unique())
        if self._topics and self.rng.random() < 0.8:
            resource = (ConfigResourceType.TOPIC, self.rng.choice(list(self._topics)))
            name = self.rng.choice(("retention.ms", "segment.ms", "max.compaction.lag.ms"))
        else:
            resource, name = (ConfigResourceType.BROKER, ""), "log.retention.ms"
        self.ask(
            AlterConfigs((AlterResource(resource, (ConfigOp(OpKind.SET, name, value),)),)),
            ("config", value),
            lambda answer: None,
        )

    def _change_acls(self) -> None:
        """Allow a new principal something, or take it back."""
        if len(self._acls) >= _ACLS_MAX or (self._acls and self.rng.random() < 0.4):
            principal = self.rng.choice(list(self._acls))
            entry = self._acls.pop(principal)  # request it only once, with any outcome
            self.ask(DeleteAcls((AclFilter(principal=principal),)), ("no acl", acl_id(entry)), lambda answer: None)
            return
        principal = f"User:u{self._unique()}"
        entry = AclRecord(
            acl_id=b"",
            resource_type=ResourceType.TOPIC,
            resource_name=self.rng.choice(list(self._topics)),
            pattern_type=PatternType.LITERAL,
            principal=principal,
            host="*",
            operation=Operation.READ,
            permission=self.rng.choice((Permission.ALLOW, Permission.DENY)),
        )

        def created(answer: Answer) -> None:
            self._acls[principal] = entry

        self.ask(CreateAcls((entry,)), ("acl", principal), created)

    def ask(self, request: Request, mark: Hashable, succeeded: Callable[[Answer], None]) -> None:
        """Send the request, and check its outcome when the controller answers, not when the answer arrives."""
        world, checks = self.world, self.world.checks
        checks.writes.begin(mark)
        is_answered = False

        def at_the_controller(result: Any) -> None:
            nonlocal is_answered
            if is_answered:
                raise Violation("answers", f"{self}'s request {mark} is answered twice, now with {result!r}")
            is_answered = True
            world.when_checked(lambda: self._judge(mark, result))

        def arrived(result: Any) -> None:
            self._follow_hint(result)
            if isinstance(result, Answer) and not _refusal(result):
                succeeded(result)

        world.calls.send(self.address, self.target, Watched(world, self.address, request, at_the_controller, arrived))

    def _judge(self, mark: Hashable, result: Any) -> None:
        world = self.world
        if isinstance(result, Answer):
            if _refusal(result):
                world.checks.refused(mark)
                world.count("answer", _refusal(result))
            else:
                world.checks.acknowledged(mark, result.metadata_offset)
        elif isinstance(result, UnknownServerError):
            raise Violation("answers", f"{mark}: {result.message}")
        elif isinstance(result, HeadraceError):
            world.count("answer", result.code)
            if result.code not in UNKNOWN_OUTCOME:
                world.checks.refused(mark)
        else:
            raise Violation("answers", f"{mark} is answered with {result!r}")

    def _follow_hint(self, result: Any) -> None:
        """A controller that is not the leader may name the leader; a node that gave no response is not asked again."""
        self._knows_the_leader = isinstance(result, Answer | int)
        if result is None or isinstance(result, HeadraceError):
            leader = getattr(result, "leader", None)
            known = leader[0] if isinstance(result, NotControllerError) and leader else 0
            self.target = known if known in self.world.hosts else self.rng.choice(list(self.world.hosts))
        elif self.rng.random() < 0.02:
            self.target = self.rng.choice(list(self.world.hosts))


#: Errors with an unknown outcome.
UNKNOWN_OUTCOME = frozenset({"REQUEST_TIMED_OUT", "SERVER_SHUTTING_DOWN"})


def _refusal(answer: Answer) -> str:
    """The code of an error within the answer; "" when all items succeeded."""
    reply = answer.reply
    if isinstance(reply, tuple):
        for item in reply:
            error = getattr(item, "error", None)
            if error is not None:
                if isinstance(error, UnknownServerError):
                    raise Violation("answers", error.message)
                return str(error.code)
    return ""


class Watched:
    """A request whose answer is checked at the controller, before the answer is sent."""

    def __init__(
        self,
        world: ControllersWorld,
        sender: int,
        request: Request,
        given: Callable[[Any], None],
        arrived: Callable[[Any], None],
    ) -> None:
        self.world, self.sender, self.request, self.given, self.answered = world, sender, request, given, arrived

    def act(self, host: ControllerHost, controller: QuorumController) -> None:
        def done(result: Any) -> None:
            self.given(result)
            self.world.calls.send(host.node_id, self.sender, lambda: self.answered(result))

        host.guarded(lambda: controller.submit(self.request, done))
