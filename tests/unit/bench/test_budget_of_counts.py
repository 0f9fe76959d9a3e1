"""The budget of counts: what strace's lines say, what an idle cluster costs, and which growth fails."""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"

TRACE = """\
7 write(3, "x"..., 100) = 100
7 access("/headrace-budget/produce", F_OK) = -1 ENOENT (No such file or directory)
7 sendmsg(5, {msg_name=NULL, ...}, 0) = 250
8 epoll_wait(4,  <unfinished ...>
7 futex(0x7f, FUTEX_WAKE_PRIVATE, 1) = 1
8 <... epoll_wait resumed>[{events=EPOLLIN, data={u32=9}}], 100, -1) = 1
8 recvmsg(9,  <unfinished ...>
8 <... recvmsg resumed>{msg_name=NULL, ...}, 0) = 250
8 recvmsg(9, {msg_namelen=0}, 0) = -1 EAGAIN (Resource temporarily unavailable)
8 clone3({flags=CLONE_VM, ...} => {parent_tid=[11]}, 88) = 11
11 pwritev(6, [{iov_base="y"..., iov_len=4096}], 1, 0) = 4096
8 +++ exited with 0 +++
7 access("/headrace-budget/", F_OK) = -1 ENOENT (No such file or directory)
11 write(6, "z"..., 7) = 7
"""


PROBES = """\
7 access("/headrace-budget/produce", F_OK) = -1 ENOENT (No such file or directory)
7 openat(AT_FDCWD, "/dev/null", O_RDONLY|O_CLOEXEC) = 60
7 openat(AT_FDCWD, "/dev/null", O_RDONLY|O_CLOEXEC <unfinished ...>
8 openat(AT_FDCWD, "/data/0.log", O_RDWR <unfinished ...>
7 <... openat resumed>)             = 61
8 <... openat resumed>)             = 62
7 close(61) = 0
7 close(60 <unfinished ...>
8 close(62) = 0
7 <... close resumed>)              = 0
"""


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("budget")


def measured(model: Any, functions: int, calls: int, copied: float) -> dict[str, Any]:
    counts = model.Counts(
        Counter({"a.py:f": functions}), Counter({"sendmsg": calls, "futex": 99, "epoll_wait": 7}), copied
    )
    path = model.PATHS[0]
    found: dict[str, Any] = model.as_json({path.name: dict.fromkeys(path.hops, counts)})
    return found


def test_calls_are_counted_by_phase_and_process_and_their_results_are_the_copied_bytes(model: Any) -> None:
    found = model.calls_by_phase(TRACE.splitlines(keepends=True), {7: 70, 8: 80})
    assert set(found) == {"produce"}
    assert found["produce"][70].calls == {"sendmsg": 1, "futex": 1}
    assert found["produce"][70].bytes == 250
    assert found["produce"][80].calls == {"epoll_wait": 1, "recvmsg": 2, "clone3": 1, "pwritev": 1}
    assert found["produce"][80].bytes == 250 + 4096


def test_probes_of_free_descriptors_do_not_count(model: Any) -> None:
    calls = model.calls_by_phase(PROBES.splitlines(keepends=True), {7: 7, 8: 7})["produce"][7].calls
    assert +calls == {"openat": 1, "close": 1}


def test_the_idle_clusters_counts_are_subtracted_by_time(model: Any) -> None:
    busy = model.Counts(Counter({"f": 230}), Counter({"sendmsg": 55}), 1_015.0)
    idle = model.Counts(Counter({"f": 20, "tick": 4}), Counter({"sendmsg": 3}), 10.0)
    per = model.without_idle(busy, 3.0, idle, 2.0, 10)
    assert per.functions == pytest.approx({"f": 20.0, "tick": -0.6})
    assert per.calls == pytest.approx({"sendmsg": 5.05})
    assert per.bytes == pytest.approx(100.0)


def test_small_writes_and_polls_are_wake_ups(model: Any) -> None:
    trace = """\
7 access("/headrace-budget/produce", F_OK) = -1 ENOENT (No such file or directory)
7 write(14, "\\1"..., 8) = 8
7 write(15, "x"..., 900) = 900
7 recvfrom(15, "1", 1, 0, NULL, NULL) = 1
7 epoll_pwait(3, [], 1024, 0, NULL, 8) = 0
"""
    counts = model.calls_by_phase(trace.splitlines(keepends=True), {7: 7})["produce"][7]
    assert counts.calls == {"write (wake-up)": 1, "write": 1, "recvfrom (wake-up)": 1, "epoll_pwait": 1}
    assert (counts.judged()["syscalls"], counts.reported()["wake_ups"]) == (1, 3)


def test_futex_and_wake_ups_are_reported_and_not_judged(model: Any) -> None:
    hop = measured(model, 100, 40, 2_000.0)["paths"]["produce-rf1-arrow"]["hops"]["leader"]
    assert hop["syscalls"] == 40
    assert hop["reported"] == {"wake_ups": 7, "futex": 99, "context_switches": 0}


def test_a_growth_of_a_fifth_fails_and_names_path_hop_count_before_and_after(model: Any) -> None:
    before, after = measured(model, 100, 40, 8_000.0), measured(model, 100, 40, 8_000.0)
    after["paths"]["produce-rf1-arrow"]["hops"]["leader"]["frames"] = 120.0
    (growth,) = model.growths(before, after)
    assert str(growth) == "produce-rf1-arrow, leader: frames per batch grew from 100.0 to 120.0 (+20%)"


@pytest.mark.parametrize(
    ("count", "before", "after", "fails"),
    [
        ("frames", 100.0, 114.9, False),
        ("frames", 100.0, 115.1, True),
        ("frames", 2.0, 7.9, False),  # below the floor
        ("syscalls", 40.0, 46.1, True),
        ("syscalls", 1.0, 2.9, False),
        ("bytes", 8_000.0, 9_201.0, True),
        ("bytes", 100.0, 611.0, False),
        ("bytes", 0.0, 513.0, True),
        ("frames", 100.0, 10.0, False),  # less is no growth
    ],
)
def test_growth_counts_from_the_share_or_the_floor(
    model: Any, count: str, before: float, after: float, fails: bool
) -> None:
    old = measured(model, 100, 40, 8_000.0)
    old["paths"]["produce-rf1-arrow"]["hops"]["client"][count] = before
    new = copy.deepcopy(old)
    new["paths"]["produce-rf1-arrow"]["hops"]["client"][count] = after
    assert bool(model.growths(old, new)) is fails


def test_a_path_that_the_baseline_lacks_is_an_error(model: Any) -> None:
    with pytest.raises(ValueError, match="the baseline has no counts of produce-rf1-arrow, client"):
        model.growths({"paths": {}}, measured(model, 1, 1, 1.0))


def test_a_baseline_has_the_largest_count_of_its_runs(model: Any) -> None:
    found = model.envelope([measured(model, 100, 41, 8_000.0), measured(model, 102, 40, 7_900.0)])
    hop = found["paths"]["produce-rf1-arrow"]["hops"]["client"]
    assert (hop["frames"], hop["syscalls"], hop["bytes"]) == (102, 41, 8_000.0)


def test_an_unstable_count_is_not_judged(model: Any) -> None:
    counts = model.Counts(Counter({"a.py:f": 100}), Counter(), 0.0)
    before = model.as_json({"consume-arrow": {"client": counts, "leader": counts}})
    after = copy.deepcopy(before)
    for hop in ("client", "leader"):
        after["paths"]["consume-arrow"]["hops"][hop]["frames"] = 200.0
    assert [growth.hop for growth in model.growths(before, after)] == ["leader"]
