"""Tests of the soak's verdict with planted histories and samples: each anomaly is found, and a healthy run has none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.soak.soak_clients import CLIENTS
from tests.system.soak.soak_history import (
    Anomalies,
    Claims,
    Follower,
    GroupCover,
    Mark,
    judge,
    judge_compacted,
    value_of,
)
from tests.system.soak.soak_picture import BEGIN, END, draw, write_page
from tests.system.soak.soak_samples import AGE_MIN_S, Process, Sample, beyond_bounds, compare, take, windows

MINUTES = 120.0


class Log:
    """The history of one partition: what a producer sent, and what the reader read."""

    def __init__(self, count: int = 10) -> None:
        self.claims = Claims("t")
        self.sequences = list(range(count))
        self.claims.next("p", 0, count)
        for sequence in range(count):
            self.claims.acknowledge(Mark("p", 0, sequence))

    def judged(self) -> dict[str, int]:
        follower = Follower("t")
        for offset, sequence in enumerate(self.sequences):
            follower.read(0, offset, value_of(Mark("p", 0, sequence), 50))
        return dict(judge(self.claims.report(), follower.report()).counts)


def _missing(log: Log) -> None:
    log.sequences.remove(4)


def _missing_at_the_end(log: Log) -> None:
    del log.sequences[-2:]


def _doubled(log: Log) -> None:
    log.sequences.insert(5, 4)


def _swapped(log: Log) -> None:
    log.sequences[4:6] = [5, 4]


def _never_sent(log: Log) -> None:
    log.sequences.append(10)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_missing, {"lost": 1}),
        (_missing_at_the_end, {"lost": 2}),
        (_doubled, {"doubled": 1}),
        (_swapped, {"reordered": 1}),
        (_never_sent, {"phantom": 1}),
        (lambda log: None, {}),
    ],
)
def test_each_anomaly_is_found(plant: Callable[[Log], None], found: dict[str, int]) -> None:
    log = Log()
    plant(log)
    assert log.judged() == found


def test_what_an_unacknowledged_send_became_is_no_loss() -> None:
    log = Log()
    log.claims.next("p", 0, 1)  # sent, without an outcome
    assert log.judged() == {}
    log.claims.fail(Mark("p", 0, 8))
    log.sequences.remove(8)
    assert log.judged() == {}


@pytest.mark.parametrize(
    ("partition", "offset", "value", "kind"),
    [
        (0, 2, value_of(Mark("p", 0, 1), 50), "gap"),
        (0, 0, value_of(Mark("p", 0, 1), 50), "nonmonotonic"),
        (0, 1, b"nonsense", "phantom"),
        (0, 1, value_of(Mark("p", 1, 1), 50), "misplaced"),
    ],
)
def test_a_record_at_the_wrong_place_is_found(partition: int, offset: int, value: bytes, kind: str) -> None:
    follower = Follower("t")
    follower.read(0, 0, value_of(Mark("p", 0, 0), 50))
    follower.read(partition, offset, value)
    assert follower.anomalies.counts[kind] == 1


def test_a_log_without_its_first_records_is_a_loss() -> None:
    follower = Follower("t")
    follower.read(0, 3, value_of(Mark("p", 0, 3), 50))
    assert follower.anomalies.counts == {"gap": 3}
    assert len(follower.report()["missing"]) == 3
    # the reader knows nothing of the records that retention deleted before its first record
    left = Follower("t", whole=False)
    left.read(0, 3, value_of(Mark("p", 0, 3), 50))
    assert not left.anomalies.counts
    assert not left.report()["missing"]


def test_a_compacted_log_has_gaps_but_each_keys_last_value() -> None:
    follower = Follower("t", compacted=True)
    for offset, sequence in ((4, 4), (9, 8)):
        follower.read(0, offset, value_of(Mark("p", 0, sequence), 50))
    assert not follower.anomalies.counts
    follower.read(0, 10, value_of(Mark("p", 0, 8), 50))
    assert follower.anomalies.counts == {"doubled": 1}
    assert judge_compacted({"a": 4, "b": 7}, {"a": 4, "b": 6}).counts == {"lost": 1}
    assert judge_compacted({"a": 4}, {}).counts == {"lost": 1}
    assert not judge_compacted({"a": 4}, {"a": 5}).counts


def test_the_checkers_memory_does_not_grow_with_the_records() -> None:
    follower = Follower("t")
    for offset in range(20_000):
        follower.read(0, offset, value_of(Mark("p", 0, offset), 50))
    report = follower.report()
    assert report["count"] == 20_000
    assert report["next"] == [["p", 0, 20_000]]
    assert not report["missing"]


def test_a_record_that_no_member_read_is_skipped_and_one_read_again_is_not() -> None:
    cover = GroupCover()
    for offset in (0, 1, 1, 2, 4):
        cover.read("t", 0, offset)
    assert cover.anomalies.counts == {"skipped": 1}
    assert (cover.count, cover.again) == (5, 1)
    from_the_middle = GroupCover()
    from_the_middle.read("t", 0, 2)
    assert from_the_middle.anomalies.counts == {"skipped": 2}


def test_anomalies_of_other_processes_are_added() -> None:
    both = Anomalies()
    both.add("lost", "a", 2)
    both.merge({"counts": {"lost": 1, "gap": 1}, "quoted": ["lost: b"]})
    assert both.counts == {"lost": 3, "gap": 1}
    assert both.quoted == ["lost: a", "lost: b"]


# -- growth


def _samples(name: str = "broker-1", *, kept: bool = True, age_s: float = 100, **late: float) -> list[Sample]:
    """One sample per minute; ``late``: the figures of the last hour."""

    def sample(minute: int) -> Sample:
        figures = {"rss_mib": 100.0, "descriptors": 50.0, "threads": 20.0, "grpc_threads": 8}
        figures |= late if minute >= 60 else {}
        return Sample(minute, name, name.partition("-")[0], kept, age_s, pss_mib=90.0, **figures)  # type: ignore[arg-type]

    return [sample(minute) for minute in range(int(MINUTES))]


@pytest.mark.parametrize("figure", ["rss_mib", "descriptors", "threads"])
def test_a_process_that_grows_by_more_than_a_twentieth_is_a_miss(figure: str) -> None:
    before = {"rss_mib": 100, "descriptors": 50, "threads": 20}[figure]
    (row,) = compare(_samples(**{figure: before * 1.06}), MINUTES)
    assert len(row["misses"]) == 1
    assert figure in row["misses"][0]
    (row,) = compare(_samples(**{figure: before * 1.05}), MINUTES)
    assert not row["misses"]
    assert row[figure]["growth"] == 0.05


def test_native_threads_of_grpc_are_reported_and_not_judged() -> None:
    (row,) = compare(_samples(grpc_threads=10), MINUTES)
    assert row["grpc_threads"] == {"early": 8, "late": 10, "growth": 0.25}
    assert not row["misses"]


def test_a_process_counts_its_threads_and_those_of_grpc_apart() -> None:
    sample = take(Process("tests", "client", os.getpid(), kept=True), 0)
    assert sample is not None
    assert sample.threads >= threading.active_count()
    assert sample.threads + sample.grpc_threads == len(os.listdir("/proc/self/task"))


def test_growth_is_judged_of_processes_that_are_never_killed_only() -> None:
    (row,) = compare(_samples("broker-2", kept=False, rss_mib=200), MINUTES)
    assert row["judged"] is False
    assert row["rss_mib"] == {"early": 100.0, "late": 200.0, "growth": 1.0}
    assert not row["misses"]


def test_a_judged_process_without_samples_in_a_window_is_a_miss() -> None:
    (row,) = compare([each for each in _samples() if each.minute < 50], MINUTES)
    assert len(row["misses"]) == 3


def test_a_controller_is_compared_with_itself_in_the_same_state() -> None:
    """An active controller has more connections, and may be active in one window more often than in the other."""

    def controller(active_late: float) -> list[Sample]:
        return [
            replace(each, minute=minute, state=state, descriptors=descriptors)
            for each in _samples("controller-1")
            for state, descriptors in (("active", 37 if each.minute < 60 else active_late), ("follower", 30))
            for minute in (each.minute + eighth / 8 for eighth in range(8))
            if (each.minute % 7 < 2 if each.minute < 60 else each.minute % 7 > 1) == (state == "follower")
        ]

    same = compare(controller(37), MINUTES)
    assert [(row["name"], row["judged"], row["misses"]) for row in same] == [
        ("controller-1, active", True, []), ("controller-1, follower", False, []),
    ]  # fmt: skip
    grown = compare(controller(40), MINUTES)
    assert [row["name"] for row in grown if row["misses"]] == ["controller-1, active"]


def test_a_controller_that_was_in_no_state_in_both_windows_is_a_miss() -> None:
    samples = [replace(each, state="active" if each.minute < 60 else "follower") for each in _samples("controller-1")]
    assert [miss for row in compare(samples, MINUTES) for miss in row["misses"]] == [
        "controller-1: in no state long enough in both windows, so its growth is unknown"
    ]


def test_a_process_that_has_just_started_does_not_count() -> None:
    assert compare(_samples(age_s=AGE_MIN_S - 1), MINUTES) == []


def test_a_short_run_has_bounds_and_no_verdict_on_growth() -> None:
    assert windows(5) is None
    assert windows(60) == ((10, 30), (30, 60))
    assert windows(120) == ((10, 30), (60, 120))
    (row,) = compare(_samples(rss_mib=200), 5)
    assert not row["judged"]
    assert row["rss_mib"] == {"median": 150.0}
    assert beyond_bounds(_samples(rss_mib=399)) == []
    (beyond,) = beyond_bounds([*_samples(rss_mib=410), *_samples(rss_mib=450)])
    assert "broker-1: rss_mib 450" in beyond
    assert len(beyond_bounds(_samples(rss_mib=500, descriptors=2000, threads=300, grpc_threads=41))) == 4


def test_the_page_takes_the_picture_and_the_table(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    page = tmp_path / "soak.md"
    page.write_text(f"# Soak\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    samples = [*_samples(), *_samples("broker-2", kept=False)]
    picture = tmp_path / "soak.png"
    draw(samples, [(1.0, "broker-2")], MINUTES, picture)
    assert picture.stat().st_size > 10_000
    summary = {
        "minutes": MINUTES, "seed": 1, "kills": 119, "acknowledged": 1000, "read": 1000, "group_read": 900, "lost": 0,
        "doubled": 0, "reordered": 0, "failed_sends": 0, "longest_silence_s": 2.5, "disk_mib": 700,
        "processes": compare(samples, MINUTES),
    }  # fmt: skip
    write_page(summary, picture, tmp_path)
    text = page.read_text()
    assert "old" not in text
    assert "| broker-1 | 100 → 100 (+0.0%) |" in text
    assert text.startswith("# Soak")
    assert text.endswith("after\n")


def test_every_client_process_has_a_name() -> None:
    assert next(iter(CLIENTS)) == "producers"  # ends first: the others read what it sent to the end
