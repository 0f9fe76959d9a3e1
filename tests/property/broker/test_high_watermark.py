"""The leader's high watermark against its definition, computed from the whole history.

    the largest M, over all moments of this epoch so far at which the committed in-sync set was large enough, of
    min(durable end that each member of the maximal in-sync set reported in its last valid acknowledgement)

The model keeps the whole history as plain lists, independent of the leader's code.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_broker.partition import IsrChange, PartitionLeader
from headrace_core.types import TopicPartition
from tests.worlds.this_process import examples

REPLICAS = (1, 2, 3, 4)
LEADER = 1
followers = st.sampled_from(REPLICAS[1:])
LAG_MS = 1_000


class HighWatermarkMachine(RuleBasedStateMachine):
    @initialize(isr=st.sets(followers), min_insync=st.integers(1, 4), end=st.integers(0, 20), known=st.integers(0, 20))
    def begin(self, isr: set[int], min_insync: int, end: int, known: int) -> None:
        self.now_ms = 10_000
        self.end = self.flushed = end
        self.start_of_epoch = end
        self.isr = (LEADER, *sorted(isr))
        self.partition_epoch = 1
        self.min_insync = min_insync
        self.asked: IsrChange | None = None
        self.is_repeat = self.is_uncertain = False
        #: For each follower: (life, durable end) of its last valid acknowledgement, and its present life.
        self.words: dict[int, tuple[int, int]] = {}
        self.joined: dict[int, int] = {}
        self.lives = dict.fromkeys(REPLICAS, 1)
        self.leader = PartitionLeader(
            TopicPartition("orders", 0),
            topic_id=b"t" * 16,
            leader_id=LEADER,
            leader_epoch=3,
            log_start=0,
            log_end=end,
            flushed_end=end,
            replicas=REPLICAS,
            isr=self.isr,
            partition_epoch=1,
            min_insync=min_insync,
            high_watermark=known,
            lag_time_max_ms=LAG_MS,
        )
        self.largest = min(known, end)
        self.look()

    def maximal(self) -> set[int]:
        return {*self.isr, *(self.asked.members if self.asked else ())}

    def look(self) -> None:
        """Compute the largest possible high watermark of this moment, and check whether the leader waits for a joining
        follower. If the leader waits, the high watermark may be lower, which a separate check covers."""
        if len(self.isr) >= min(self.min_insync, len(REPLICAS)):
            durable = [self.words.get(each, (0, -1))[1] for each in sorted(self.maximal()) if each != LEADER]
            self.largest = max(self.largest, min([self.flushed, *durable]))

    def lower_bound(self) -> int:
        """The leader may wait for any follower."""
        return min([self.largest, *(durable for _, durable in self.words.values())])

    # ---------------------------------------------------------------- what happens

    @rule(count=st.integers(1, 9), flushed=st.booleans())
    def append(self, count: int, flushed: bool) -> None:
        self.end += count
        if flushed:
            self.flushed = self.end
        self.leader.advanced(self.end, self.flushed, count)
        self.look()

    @rule()
    def flush(self) -> None:
        self.flushed = self.end
        self.leader.advanced(self.leader.log_end, self.end)
        self.look()

    @rule(who=followers, share=st.floats(0, 1), reborn=st.booleans())
    def join(self, who: int, share: float, reborn: bool) -> None:
        self.lives[who] += reborn
        durable = int(self.end * share)
        assert self.leader.follower_joined(
            who, self.lives[who], log_end=durable, durable_end=durable, log_start=0, now_ms=self.now_ms
        )
        self.joined[who] = self.lives[who]
        self.words[who] = self.lives[who], durable
        self.look()

    @rule(who=followers, share=st.floats(0, 1), stale=st.booleans())
    def ack(self, who: int, share: float, stale: bool) -> None:
        life = self.lives[who] - stale
        before = self.words.get(who, (0, 0))[1]
        durable = before + int((self.end - before) * share)
        counts = self.leader.follower_acked(
            who, life, durable_end=durable, log_end=durable, log_start=0, now_ms=self.now_ms
        )
        assert counts == (who in self.joined and self.joined[who] == life)
        if counts:
            self.words[who] = life, durable
        self.look()

    @rule(who=followers)
    def leave(self, who: int) -> None:
        self.leader.follower_left(who, self.now_ms)
        self.joined.pop(who, None)
        self.look()

    @rule(passes_ms=st.sampled_from([0, 100, LAG_MS, LAG_MS + 1]), fenced=st.sets(followers, max_size=1))
    def ask(self, passes_ms: int, fenced: set[int]) -> None:
        self.now_ms += passes_ms
        lives = {who: life for who, life in self.lives.items() if who not in fenced}
        change = self.leader.isr_change(self.now_ms, lives.get)
        self.look()
        if change is None:
            return
        assert change.partition_epoch == self.partition_epoch
        if self.asked is not None:
            assert (self.is_repeat, change) == (True, self.asked), "another question while one is open"
        else:
            assert change.members[0] == LEADER
            assert set(change.members) != set(self.isr), "it asks for what is so"
            for who, life in change.isr:
                assert lives[who] == life, "a member that is fenced, or of a former life"
                if who != LEADER and who not in self.isr:
                    assert self.joined.get(who) == life
                    assert self.words[who][1] >= max(self.start_of_epoch, self.leader.high_watermark)
        self.leader.proposed(change)
        self.asked, self.is_repeat = change, False
        self.look()

    @rule(answer=st.sampled_from(["done", "lost, done", "lost", "ineligible", "overtaken", "fenced", "stale"]))
    def answered(self, answer: str) -> None:
        asked = self.asked
        if asked is None or self.is_repeat:
            return
        if answer == "done":
            assert self.leader.altered(asked.members, self.partition_epoch + 1, 3, asked.recovering)
            self.decided(asked.members)
        elif answer.startswith("lost"):
            self.leader.alter_refused("REQUEST_TIMED_OUT", retriable=True, now_ms=self.now_ms)
            self.is_repeat = self.is_uncertain = True
            if answer == "lost, done":
                self.metadata(asked.members)
        elif answer == "ineligible":
            self.leader.alter_refused("INELIGIBLE_REPLICA", retriable=False, now_ms=self.now_ms)
            self.is_repeat = self.is_uncertain  # a lost attempt may still be granted
            self.asked = self.asked if self.is_uncertain else None
        elif answer == "fenced":
            self.leader.alter_refused("INVALID_UPDATE_VERSION", retriable=False, now_ms=self.now_ms)
        elif answer == "stale":
            assert not self.leader.altered((LEADER,), self.partition_epoch - 1, 3, False)
        else:
            self.metadata((LEADER,))
        self.look()

    def metadata(self, isr: tuple[int, ...]) -> None:
        self.decided(isr)
        assert self.leader.metadata_changed(
            isr=isr, partition_epoch=self.partition_epoch, replicas=REPLICAS, min_insync=self.min_insync
        )

    def decided(self, isr: tuple[int, ...]) -> None:
        self.isr, self.partition_epoch, self.asked = isr, self.partition_epoch + 1, None
        self.is_repeat = self.is_uncertain = False

    @rule(isr=st.sets(followers), min_insync=st.integers(1, 4), old=st.booleans())
    def controllers_decide(self, isr: set[int], min_insync: int, old: bool) -> None:
        self.min_insync = min_insync
        members = (LEADER, *sorted(isr))
        epoch = self.partition_epoch + (-1 if old else 1)
        is_new = self.leader.metadata_changed(
            isr=members, partition_epoch=epoch, replicas=REPLICAS, min_insync=min_insync
        )
        assert is_new == (not old)
        if not old:
            self.decided(members)
        self.look()

    # ---------------------------------------------------------------- what holds

    @invariant()
    def it_is_what_the_definition_says(self) -> None:
        if not hasattr(self, "leader"):
            return
        leader = self.leader
        assert leader.high_watermark <= self.largest, "it promises what somebody who counts has not settled"
        assert leader.high_watermark >= min(self.lower_bound(), self.largest), "it keeps back what all have settled"
        if not any(who in self.joined and who not in self.maximal() for who in REPLICAS):
            self.largest_without_waiting()
        assert leader.maximal_isr == self.maximal()
        assert leader.isr == self.isr
        assert leader.is_below_min_insync == (len(self.isr) < min(self.min_insync, len(REPLICAS)))

    def largest_without_waiting(self) -> None:
        """Without a joining follower, the high watermark is exactly the minimum of the durable ends."""
        if len(self.isr) < min(self.min_insync, len(REPLICAS)):
            return
        durable = [self.words.get(each, (0, -1))[1] for each in sorted(self.maximal()) if each != LEADER]
        assert self.leader.high_watermark >= min([self.flushed, *durable])

    @invariant()
    def it_never_goes_back(self) -> None:
        if not hasattr(self, "leader"):
            return
        assert self.leader.high_watermark >= getattr(self, "before", 0)
        self.before = self.leader.high_watermark


HighWatermarkMachine.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
TestHighWatermark = HighWatermarkMachine.TestCase
