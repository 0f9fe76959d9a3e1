"""The autoscaler's decision, the cache and the partitioner of the check: pure, without processes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from headrace.partitioners import key_partition
from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.scaling.caching import Cache
from headrace_pipelines.scaling.deciding import Limits, Sample, State, decide
from headrace_pipelines.scaling.notes import Note
from headrace_pipelines.scaling.scenes import PARTITIONS, SCENES, scenes_of
from headrace_pipelines.scaling.schema import traffic
from headrace_pipelines.scaling.truth import Row, broken, check

LIMITS = Limits(most=4)


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


def test_limits_that_contradict_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="least=5, most=4"):
        Limits(least=5, most=4)
    with pytest.raises(InvalidArgumentError, match="shrink_s=2"):
        Limits(most=4, shrink_s=2.0)


def simulated(arriving: Callable[[float], float], seconds: int, rng: random.Random) -> list[int]:
    """The members of each half second; a member handles 900 records a second, and starts to after one second."""
    limits, state, behind, counts = Limits(most=8), State(1, 0.0), 0.0, list[int]()
    ready: list[tuple[float, int]] = [(0.0, 1)]
    for step in range(1, 2 * seconds):
        now_s = step / 2
        rate = arriving(now_s) * rng.uniform(0.9, 1.1)
        working = min(state.members, next(count for at_s, count in reversed(ready) if at_s <= now_s))
        handled = min(working * 900.0, behind * 2 + rate)
        behind = max(0.0, behind + (rate - handled) / 2)
        state = decide(state, Sample(now_s, behind / max(rate, 1.0), rate, handled), limits)
        if not counts or counts[-1] != state.members:
            ready.append((now_s + 1.0, state.members))
        counts.append(state.members)
    return counts


@pytest.mark.parametrize("rate", [100, 800, 1_500, 2_500, 3_500, 6_000, 50_000])
def test_a_steady_traffic_leaves_a_steady_number_of_members(rate: int, rng: random.Random) -> None:
    counts = simulated(lambda _: rate, 300, rng)
    assert all(1 <= count <= 8 for count in counts)
    assert len(set(counts[300:])) <= 2, "at most one member is stopped late"
    assert counts[-1] >= min(rate / 900, 8) - 1e-9
    changes = sum(old != new for old, new in itertools.pairwise(counts))
    assert changes <= 8, "no flapping"


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
    return [Note(*row, at, "-", "m") for at, row in enumerate(rows)]


def test_a_scene_that_handles_every_record_in_order_is_right() -> None:
    rows = placed(500, PARTITIONS)
    found = check(MEMBERS, SENT, 500, rows, [*handled(rows), Note(*rows[0], 10_000, "-", "m")])
    assert found.wrong == []
    assert found.figures == {"records": 500, "handled_again": 1, "members_with_records": 1, "keys_out_of_order": 0}


def test_missing_doubled_misplaced_and_unordered_records_are_found() -> None:
    rows = placed(500, PARTITIONS)
    for arrived, notes, fault in (
        (rows[:-1], handled(rows[:-1]), "does not have each record once"),
        ([*rows, (0, 9_999, *rows[0][2:])], handled(rows), "does not have each record once"),
        ([((row[0] + 1) % PARTITIONS, *row[1:]) for row in rows], handled(rows), "not in the partitions"),
        (rows, handled(rows[:-1]), "the handled records are not"),
        (rows, handled(rows[::-1]), "keys are out of order"),
    ):
        assert any(fault in text for text in check(MEMBERS, SENT, 500, arrived, notes).wrong), fault


def test_raised_partitions_may_break_the_order_of_moved_keys_only() -> None:
    rows = placed(250, 8)
    new_first = sorted(rows, key=lambda row: row[0] < PARTITIONS)
    found = check(PARTED, SENT, 250, rows, handled(new_first))
    assert found.wrong == []
    assert 0 < found.figures["keys_out_of_order"] <= found.figures["keys_moved"]
    assert broken(handled(new_first)) == {
        key
        for part, _, key, _ in rows
        if part >= PARTITIONS and any(row[2] == key and row[0] < PARTITIONS for row in rows)
    }
    assert any("kept their partition" in text for text in check(PARTED, SENT, 250, rows, handled(rows[::-1])).wrong)


def test_unknown_scenes_are_refused() -> None:
    assert scenes_of("cached, one") == tuple(scene for scene in SCENES if scene.name in ("one", "cached"))
    for text in ("", "one,two"):
        with pytest.raises(InvalidArgumentError, match="unknown scenes"):
            scenes_of(text)
