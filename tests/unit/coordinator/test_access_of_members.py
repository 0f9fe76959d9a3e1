"""What a client without READ on a group does to the group's members on streams: nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace_coordinator.group.messages import HeartbeatReply
from headrace_coordinator.handlers.membership import Members, MembershipStream
from headrace_coordinator.runtime.claims import Claim
from headrace_core.metadata.records import AclRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.access import EVERYTHING, Access, set_access
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorization import authorization_of
from headrace_core.security.caller import Caller
from headrace_core.security.principal import Principal
from headrace_protos.v1 import common_pb2, groups_pb2

KEYS = {"authorizer.class.name": "StandardAuthorizer"}


def entry(user: str, operation: Operation, kind: ResourceType, name: str) -> AclRecord:
    key = f"{user}{operation}{name}".encode().ljust(16)[:16]
    return AclRecord(key, kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)


IMAGE = SecurityImage(
    acls={
        each.acl_id: each
        for each in (
            entry("alice", Operation.READ, ResourceType.GROUP, "g"),
            entry("mallory", Operation.DESCRIBE, ResourceType.GROUP, "g"),  # so mallory knows the ids of members
            entry("mallory", Operation.DESCRIBE, ResourceType.TOPIC, "orders"),
        )
    }
)


class Stream:
    queued_bytes, paused = 0, False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_over = False

    def send(self, response: Any, size: int) -> None:
        self.sent.append(response)

    def finish(self, error: Any = None) -> None:
        self.is_over = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class World:
    """A coordinator's streams, and its shard, which records what it gets."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.runner: Any = SimpleNamespace(shard=SimpleNamespace(name="s", claim=Claim(1, 1, 1)), is_serving=True)
        self.runner.put = lambda asked, done=None: self.asked.append(asked)
        self.members = Members(lambda _: self.runner)
        self._numbers = 0

    def stream(self, user: str) -> tuple[MembershipStream, Stream]:
        self._numbers += 1
        set_access(Access(Caller(Principal("User", user), "10.0.0.1"), authorization_of(KEYS, lambda: IMAGE)))
        stream = Stream()
        found = MembershipStream(self.members, stream, self._numbers, "10.0.0.1")  # type: ignore[arg-type]
        set_access(EVERYTHING)
        return found, stream


def request(kind: str, member_id: str = "m", number: int = 1) -> Any:
    made = groups_pb2.MembershipRequest(correlation_id=number)
    message = getattr(made, kind)
    message.group_id, message.member_id = "g", member_id
    return made


def test_a_refused_client_ends_no_stream_of_a_member_and_gets_none_of_its_pushes() -> None:
    for kind in ("heartbeat", "leave"):
        world = World()
        alice, at_alice = world.stream("alice")
        alice.on_request(request("heartbeat"))
        mallory, at_mallory = world.stream("mallory")
        mallory.on_request(request(kind))
        assert at_mallory.sent[0].error.code == common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED
        assert not at_alice.is_over
        push: Any = SimpleNamespace(
            group_id="g", member_id="m", message=HeartbeatReply("m", 1, 5_000, 45_000, 1_500, 1)
        )
        world.members.tell([push])
        assert (len(at_alice.sent), len(at_mallory.sent)) == (1, 1)
        mallory.on_closed()
        assert len(world.asked) == 1, "the group learns nothing of the refused stream"
        world.members.tell([push])
        assert len(at_alice.sent) == 2
