"""The autoscaler's decision, the cache and the partitioner of the check: pure, without processes."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.partitioners import key_partition
from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.scaling.caching import Cache
from headrace_pipelines.scaling.deciding import Limits, Sample, State, busiest_share, decide
from headrace_pipelines.scaling.notes import Note, Notes, read
from headrace_pipelines.scaling.playing import Played, scalings
from headrace_pipelines.scaling.scenes import PARTITIONS, RECORDS_MAX, SCENES, check_rate, scenes_of
from headrace_pipelines.scaling.schema import traffic
from headrace_pipelines.scaling.truth import Row, broken, check, overlapping

LIMITS = Limits(partitions=4)


def after(state: State, *lags: tuple[float, float | None], arriving: float = 0.0, handled: float = 1_000.0) -> State:
    for at_s, lag_s in lags:
        state = decide(state, Sample(at_s, lag_s, arriving, handled), LIMITS)
    return state


def test_a_lag_doubles_the_members_up_to_the_partitions() -> None:
    state = after(State(1, 0.0), (2.0, 1.6))
    assert (state.members, state.capacity) == (2, 1_000.0)
    assert after(state, (3.9, 9.0)).members == 2, "a change has time to take effect"
    assert after(state, (4.0, 9.0), (6.0, 9.0), (60.0, 9.0)).members == 4


def test_members_are_stopped_one_by_one_after_a_calm_time() -> None:
    state = State(4, 0.0)
    assert after(state, (3.0, 0.0), (5.9, 0.0)).members == 4
    assert after(state, (3.0, 0.0), (6.0, 0.0)).members == 3
    assert after(state, (3.0, 0.0), (6.0, 0.0), (8.9, 0.0)).members == 3
    assert after(state, *((float(at_s), 0.0) for at_s in range(100))).members == 1


@pytest.mark.parametrize("lag_s", [None, 0.75, 1.0, 1.5])
def test_between_the_limits_and_without_a_lag_nothing_changes(lag_s: float | None) -> None:
    state = after(State(3, 0.0), (3.0, 0.0), (5.0, lag_s), (7.0, 0.0))
    assert state.members == 3, "the calm time begins again"


def test_a_member_is_kept_if_the_others_cannot_handle_the_traffic() -> None:
    calm = [(float(at_s), 0.0) for at_s in range(3, 50)]
    assert after(State(3, 0.0, None, 1_000.0), *calm, arriving=1_601.0).members == 3
    assert after(State(3, 0.0, None, 1_000.0), *calm, arriving=1_600.0).members == 2


def test_the_member_with_the_most_partitions_decides_whether_a_group_can_be_smaller() -> None:
    assert [busiest_share(members, 4) for members in (1, 2, 3, 4)] == [1.0, 0.5, 0.5, 0.25]
    calm = [(float(at_s), 0.0) for at_s in range(3, 50)]
    assert after(State(4, 0.0, None, 1_000.0), *calm, arriving=1_601.0).members == 4, "one of three has half"
    assert after(State(4, 0.0, None, 1_000.0), *calm, arriving=1_600.0).members == 2


def test_limits_that_contradict_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="least=5, partitions=4"):
        Limits(least=5, partitions=4)
    with pytest.raises(InvalidArgumentError, match="shrink_s=2"):
        Limits(partitions=4, shrink_s=2.0)


def simulated(
    arriving: Callable[[float], float], seconds: int, rng: random.Random, partitions: int = 8, capacity: float = 900.0
) -> list[int]:
    """The members of each half second. A member handles ``capacity`` records a second of its own partitions, and works
    one second after its start. The traffic is even over the partitions."""
    limits, state, behind, counts = Limits(partitions=partitions), State(1, 0.0), [0.0] * partitions, list[int]()
    ready: list[tuple[float, int]] = [(0.0, 1)]
    for step in range(1, 2 * seconds):
        now_s = step / 2
        rate = arriving(now_s) * rng.uniform(0.9, 1.1)
        working = min(state.members, next(count for at_s, count in reversed(ready) if at_s <= now_s))
        before = sum(behind) + rate / 2
        for first in range(working):
            own = range(first, partitions, working)
            waiting = [behind[part] + rate / 2 / partitions for part in own]
            left = max(0.0, 1 - capacity / 2 / sum(waiting))
            for part, records in zip(own, waiting, strict=True):
                behind[part] = records * left
        handled = 2 * (before - sum(behind))
        lag_s = max(behind) * partitions / rate
        state = decide(state, Sample(now_s, lag_s, rate, handled), limits)
        if not counts or counts[-1] != state.members:
            ready.append((now_s + 1.0, state.members))
        counts.append(state.members)
    return counts


def changes(counts: list[int]) -> int:
    return sum(old != new for old, new in itertools.pairwise(counts))


@pytest.mark.parametrize("rate", [100, 800, 1_500, 2_500, 3_500, 6_000, 50_000])
def test_a_steady_traffic_leaves_a_steady_number_of_members(rate: int, rng: random.Random) -> None:
    counts = simulated(lambda _: rate, 300, rng)
    assert all(1 <= count <= 8 for count in counts)
    assert len(set(counts[300:])) <= 2, "at most one member is stopped late"
    assert counts[-1] >= min(rate / 900, 8) - 1e-9
    assert changes(counts) <= 8, "no flapping"


@pytest.mark.parametrize("partitions", [3, 4, 5, 8])
@pytest.mark.parametrize("rate", [700, 1_100, 1_500, 1_700, 2_100, 2_400])
def test_members_without_the_same_number_of_partitions_do_not_flap(
    partitions: int, rate: int, rng: random.Random
) -> None:
    counts = simulated(lambda _: rate, 600, rng, partitions, capacity=800.0)
    assert changes(counts) <= 8
    assert changes(counts[200:]) == 0, "steady after 100 s"


def test_the_members_follow_the_traffic_up_and_down(rng: random.Random) -> None:
    counts = simulated(lambda now_s: 4_000 if 20 <= now_s < 60 else 200, 160, rng)
    assert max(counts) >= 5
    assert counts[30] == counts[-1] == 1
    assert counts == sorted(counts[: counts.index(max(counts)) + 1]) + sorted(
        counts[counts.index(max(counts)) + 1 :], reverse=True
    ), "up once, then down once"


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_the_cache_keeps_the_values_that_were_used_last() -> None:
    cache: Cache[str, int] = Cache(2, 10.0)
    cache.put("a", 1, 0.0)
    cache.put("b", 2, 1.0)
    assert cache.get("a", 2.0) == 1
    cache.put("c", 3, 3.0)
    assert (cache.get("b", 4.0), cache.get("a", 4.0), cache.get("c", 4.0), len(cache)) == (None, 1, 3, 2)


def test_a_value_is_too_old_after_its_time_also_if_it_is_used() -> None:
    cache: Cache[str, int] = Cache(2, 10.0)
    cache.put("a", 1, 0.0)
    assert (cache.get("a", 9.9), cache.get("a", 10.0), len(cache)) == (1, None, 0)
    with pytest.raises(InvalidArgumentError, match="size=0"):
        Cache(0, 1.0)


# -- the check ---------------------------------------------------------------------------------------------------------

(MEMBERS, PARTED) = scenes_of("members,partitions")
SENT = traffic(500, 1)


def placed(first: int, raised: int) -> list[Row]:
    """The records as the default partitioner puts them, with the partitions raised after ``first``."""
    ends, rows = dict[int, int](), list[Row]()
    for at, (key, value) in enumerate(SENT):
        part = key_partition(key, PARTITIONS if at < first else raised)
        ends[part] = ends.get(part, -1) + 1
        rows.append((part, ends[part], key.decode(), int(value[6:-1])))
    return rows


def handled(rows: list[Row]) -> list[Note]:
    return [Note(*row, at, at + 1, "-", "m") for at, row in enumerate(rows)]


def test_a_scene_that_handles_every_record_in_order_is_right() -> None:
    rows = placed(500, PARTITIONS)
    found = check(MEMBERS, SENT, 500, rows, handled(rows), rebalanced=False)
    assert found.wrong == []
    assert found.figures == {
        "records": 500,
        "handled_again": 0,
        "members_with_records": 1,
        "keys_out_of_order": 0,
        "keys_overlapping": 0,
    }


def test_a_record_may_be_handled_again_only_after_a_death_or_a_rebalance() -> None:
    rows = placed(500, PARTITIONS)
    notes = [*handled(rows), Note(*rows[0], 10_000, 10_001, "-", "m")]
    found = check(MEMBERS, SENT, 500, rows, notes, rebalanced=True)
    assert (found.wrong, found.figures["handled_again"]) == ([], 1)
    (fault,) = check(MEMBERS, SENT, 500, rows, notes, rebalanced=False).wrong
    assert "1 records were handled again" in fault


def test_two_records_of_a_key_must_not_be_handled_at_the_same_time() -> None:
    rows = placed(500, PARTITIONS)
    notes = handled(rows)
    second = next(note for note in notes if note.n == 1)
    for ended_ns, keys in ((second.at_ns, set[str]()), (second.at_ns + 1, {second.key})):
        longer = [note._replace(ended_ns=ended_ns) if note[2:4] == (second.key, 0) else note for note in notes]
        assert overlapping(longer) == keys
        found = check(MEMBERS, SENT, 500, rows, longer, rebalanced=False)
        assert ["at the same time" in text for text in found.wrong] == [True] * len(keys)
        assert found.figures["keys_overlapping"] == len(keys)


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    notes = handled(placed(500, PARTITIONS)[:3])
    Notes(tmp_path).write(notes[::-1])
    assert read(tmp_path) == [note._replace(member=f"{os.getpid()}") for note in notes]


def test_missing_doubled_misplaced_and_unordered_records_are_found() -> None:
    rows = placed(500, PARTITIONS)
    for arrived, notes, fault in (
        (rows[:-1], handled(rows[:-1]), "does not have each record once"),
        ([*rows, (0, 9_999, *rows[0][2:])], handled(rows), "does not have each record once"),
        ([((row[0] + 1) % PARTITIONS, *row[1:]) for row in rows], handled(rows), "not in the partitions"),
        (rows, handled(rows[:-1]), "the handled records are not"),
        (rows, handled(rows[::-1]), "keys are out of order"),
    ):
        assert any(fault in text for text in check(MEMBERS, SENT, 500, arrived, notes, rebalanced=False).wrong), fault


def test_raised_partitions_may_break_the_order_of_moved_keys_only() -> None:
    rows = placed(250, 8)
    new_first = sorted(rows, key=lambda row: row[0] < PARTITIONS)
    found = check(PARTED, SENT, 250, rows, handled(new_first), rebalanced=True)
    assert found.wrong == []
    assert 0 < found.figures["keys_out_of_order"] <= found.figures["keys_moved"]
    assert broken(handled(new_first)) == {
        key
        for part, _, key, _ in rows
        if part >= PARTITIONS and any(row[2] == key and row[0] < PARTITIONS for row in rows)
    }
    found = check(PARTED, SENT, 250, rows, handled(rows[::-1]), rebalanced=True)
    assert any("kept their partition" in text for text in found.wrong)


def test_a_death_a_late_start_and_a_new_epoch_count_as_a_rebalance() -> None:
    assert not Played(epochs=(7, 7)).rebalanced
    assert Played(epochs=(7, 8)).rebalanced
    assert Played(epochs=(None, 8)).rebalanced
    assert Played(epochs=(7, 7), deaths={"member": 1}).rebalanced


def test_unknown_scenes_are_refused() -> None:
    assert scenes_of("cached, one") == tuple(scene for scene in SCENES if scene.name in ("one", "cached"))
    for text in ("", "one,two"):
        with pytest.raises(InvalidArgumentError, match="unknown scenes"):
            scenes_of(text)


@pytest.mark.parametrize("rest", ["", "scaled", "scaled 12.5 1", "scaled 12.5 1 0.0"])
def test_a_line_of_the_log_that_is_not_whole_yet_is_left_out(rest: str) -> None:
    log = "scaled 10.250 1 -\nautoscaler: OSError: a disk\nscaled 10.750 2 1.625\n"
    assert scalings(log + rest) == [(10.25, 1.0), (10.75, 2.0)]


def test_a_rate_that_the_memory_cannot_hold_is_refused() -> None:
    """--rate 1e9 made billions of records before the first was sent."""
    check_rate(5_000.0, SCENES)
    check_rate(0.1, SCENES)
    with pytest.raises(InvalidArgumentError, match=r"--rate 1e\+09: the scene one would send 2e\+09 records, .*500000"):
        check_rate(1e9, SCENES)
    for scene in SCENES:
        assert sum(scene.counts(RECORDS_MAX / sum(each * share for each, share in scene.parts))) <= RECORDS_MAX
