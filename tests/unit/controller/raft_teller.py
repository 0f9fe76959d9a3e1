"""Runs a script of commands and writes a transcript of the events, as etcd's raft tests do. A transcript consists of
``> command`` lines, each followed by the events that the command caused. Commands:

    voters 1 2 3              a quorum with empty disks; time-outs are maximal, so only ticked nodes stand for election
    tick 1 [x9]               time passes for some nodes (``1,2``), or ``all``; [x9]: nine times
    deliver [n]               the messages in the network (or n of them) arrive, in order
    settle                    deliver until the network is empty
    drop                      all messages in the network are lost
    propose 1 text [x3]       the leader appends; x3: an entry of three offsets
    crash 1 / restart 1       the machine fails, and starts again with its disk
    kill 1 / lost 3 1         the process ends, and the others see broken connections; node 3 loses its connection to 1
    cut 1,2 / oneway 1 / heal nodes are cut off; a node receives nothing; the network is repaired
    join 4                    a replica with an empty disk becomes an observer
    add 1 4 / remove 1 3      the leader changes the voters
    transfer 1 2 / read 1 x   node 1 hands over to node 2; node 1 gets a request for a linearizable read
    compact 1                 the state machine takes a snapshot of all applied entries
    status                    the state of every node
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from headrace_controller.raft import (
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    RaftSettings,
    Ready,
    ReplicaKey,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoterSet,
)
from headrace_core.errors import HeadraceError
from tests.worlds.raft_world import RaftWorld, Replica, key, voters


class TellingWorld(RaftWorld):
    """Write a line for every step of every Ready."""

    def __init__(self, members: VoterSet) -> None:
        self.lines: list[str] = []
        self._roles: dict[ReplicaKey, tuple[str, int, int]] = {}
        settings = RaftSettings(election_ticks=5, learner_lag_max=50, snapshot_chunk_bytes=16)
        super().__init__(members, settings=settings, draw=lambda below: below - 1)

    def on_ready(self, replica: Replica, ready: Ready) -> None:
        who, tell = replica.key.node_id, self.lines.append
        role = (ready.role.value, ready.term, ready.leader)
        if self._roles.get(replica.key, ("follower", 0, -1)) != role:
            self._roles[replica.key] = role
            behind = f" of {ready.leader}" if role[0] == "follower" and ready.leader >= 0 else ""
            tell(f"{who} is {role[0]}{behind} in term {ready.term}")
        for message in ready.messages:
            tell(f"  {_sent(message)}")
        if ready.hard_state is not None:
            vote = "nobody" if ready.hard_state.vote is None else ready.hard_state.vote.node_id
            tell(f"  {who} saves term {ready.hard_state.term}, vote for {vote}")
        if ready.chunk is not None:
            tell(f"  {who} writes {len(ready.chunk.data)} bytes of a snapshot at {ready.chunk.position}")
        if ready.install is not None:
            tell(f"  {who} installs the snapshot up to {ready.install.place}")
        if ready.truncate_to is not None:
            tell(f"  {who} cuts its log at {ready.truncate_to}")
        for entry in ready.entries:
            tell(f"  {who} appends {_named(entry)}")
        for message in ready.replies:
            tell(f"  {_sent(message)}")
        if ready.committed > replica.applied:
            tell(f"  {who} commits {ready.committed}")
        for token, offset in ready.reads:
            tell(f"  {who} may serve read {token} from {offset} on")
        for token in ready.reads_failed:
            tell(f"  {who} gives up read {token}")


def _named(entry: Entry) -> str:
    what = f"voters {_ids(entry.voters)}" if entry.voters is not None else entry.kind.value
    if entry.kind is EntryKind.DATA:
        what = entry.data.decode()
    return f"{entry.base_offset}..{entry.next_offset}/{entry.term} {what}"


def _ids(members: VoterSet) -> str:
    return ",".join(str(member.node_id) for member in members)


def _sent(message: Message) -> str:
    return f"{message.sender.node_id} -> {message.to.node_id}: {_said(message)}"


def _said(message: Message) -> str:
    match message.body:
        case VoteRequest() as body:
            kind = "would you vote for me" if body.is_pre_vote else "vote for me"
            return f"{kind} in term {body.term}, my log ends at {body.end}" + (", as asked" if body.is_transfer else "")
        case VoteResponse() as body:
            said = "yes" if body.is_granted else "no"
            return f"{said}, {'I would' if body.is_pre_vote else 'in'} term {body.asked_term} (mine is {body.term})"
        case AppendRequest() as body:
            entries = "; ".join(map(_named, body.entries)) or "nothing"
            return f"behind {body.previous}: {entries}; committed {body.committed}"
        case AppendResponse(is_rejected=True) as body:
            return f"no, mine is {body.match} (term {body.term})"
        case AppendResponse() as body:
            return f"durable up to {body.match}"
        case HeartbeatRequest() as body:
            return f"heartbeat, committed {body.committed}, round {body.round}"
        case HeartbeatResponse() as body:
            return f"heard, round {body.round}"
        case SnapshotRequest() as body:
            last = ", the last" if body.is_last else ""
            return f"snapshot {body.snapshot.place}, {len(body.data)} bytes at {body.position}{last}"
        case SnapshotResponse() as body:
            return f"snapshot {body.place}: " + ("installed" if body.is_installed else f"go on at {body.position}")
        case TimeoutNow() as body:
            return f"stand for election, I lead in {body.term}"


class Teller:
    """Runs commands, and writes the transcript."""

    def __init__(self) -> None:
        self._world: TellingWorld | None = None

    @property
    def world(self) -> TellingWorld:
        assert self._world is not None, "a script begins with: voters ..."
        return self._world

    def run(self, commands: list[str]) -> str:
        """The transcript of a script."""
        text = []
        for command in commands:
            name, *words = shlex.split(command)
            act: Callable[..., None] = getattr(self, f"do_{name}")
            try:
                act(*words)
            except HeadraceError as error:
                self.world.lines.append(f"{error.code}: {error.message}")
            text += [f"> {command}", *self.world.lines, ""]
            self.world.lines.clear()
        return "\n".join(text)

    def _replica(self, word: str) -> Replica:
        return self.world.replicas[key(int(word))]

    def _replicas(self, word: str) -> list[Replica]:
        if word == "all":
            return [replica for replica in self.world.replicas.values() if replica.is_up]
        return [self._replica(each) for each in word.split(",")]

    def do_voters(self, *words: str) -> None:
        self._world = TellingWorld(voters(*map(int, words)))

    def do_tick(self, who: str, times: str = "x1") -> None:
        for _ in range(int(times[1:])):
            for replica in self._replicas(who):
                replica.node.tick()
                self.world.work(replica)

    def do_deliver(self, count: str = "") -> None:
        arriving = self.world.network[: int(count) if count else None]
        del self.world.network[: len(arriving)]
        for message in arriving:
            self.world.deliver(message)

    def do_settle(self) -> None:
        self.world.settle()

    def do_drop(self) -> None:
        self.world.lines.append(f"{len(self.world.network)} messages are lost")
        self.world.network.clear()

    def do_propose(self, who: str, text: str, count: str = "x1") -> None:
        self._replica(who).node.propose(text.encode(), int(count[1:]))
        self.world.work(self._replica(who))

    def do_crash(self, who: str) -> None:
        self.world.crash(self._replica(who))

    def do_kill(self, who: str) -> None:
        self.world.kill(self._replica(who))

    def do_lost(self, who: str, peer: str) -> None:
        self._replica(who).node.peer_lost(key(int(peer)))

    def do_restart(self, who: str) -> None:
        self.world.restart(self._replica(who))

    def do_cut(self, who: str) -> None:
        apart = {replica.key for replica in self._replicas(who)}
        self.world.is_cut = lambda sender, to: (sender in apart) != (to in apart)

    def do_oneway(self, who: str) -> None:
        deaf = {replica.key for replica in self._replicas(who)}
        self.world.is_cut = lambda sender, to: to in deaf

    def do_heal(self) -> None:
        self.world.is_cut = lambda sender, to: False

    def do_join(self, who: str) -> None:
        joined = self.world.add(key(int(who)))
        for replica in self._replicas("all"):
            replica.node.observe(joined.key)
            self.world.work(replica)

    def do_add(self, leader: str, who: str) -> None:
        self._replica(leader).node.add_voter(key(int(who)))
        self.world.work(self._replica(leader))

    def do_remove(self, leader: str, who: str) -> None:
        self._replica(leader).node.remove_voter(key(int(who)))
        self.world.work(self._replica(leader))

    def do_transfer(self, leader: str, who: str) -> None:
        self._replica(leader).node.transfer(key(int(who)))
        self.world.work(self._replica(leader))

    def do_read(self, who: str, token: str) -> None:
        self._replica(who).node.read(token)
        self.world.work(self._replica(who))

    def do_compact(self, who: str) -> None:
        replica = self._replica(who)
        self.world.compact(replica, replica.applied)

    def do_status(self) -> None:
        for own, replica in self.world.replicas.items():
            node = replica.node
            state = f"{node.role.value}, term {node.term}, leader {node.leader}" if replica.is_up else "down"
            log = f"log {node.log.start}..{node.log.end}"
            self.world.lines.append(
                f"{own.node_id}: {state}, voters {_ids(node.voters)}, {log}, committed {node.committed}"
            )
