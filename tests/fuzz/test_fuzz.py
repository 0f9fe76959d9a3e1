"""Replays the corpus, and then runs INPUTS mutated inputs of each target. The input of a failure is minimized and saved
under build/fuzz, and the failure says how to run it again. run_fuzz.py fuzzes for longer, with other seeds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from headrace_core.records import check_batch
from tests.fuzz.fuzz_engine import CORPUS, Mutator, Target, burst, check, corpus_files, minimize, report
from tests.fuzz.fuzz_handlers import stop_nodes
from tests.fuzz.fuzz_kafka import stop
from tests.fuzz.fuzz_seeds import batches, sealed
from tests.fuzz.fuzz_targets import TARGETS

INPUTS = 100


@pytest.fixture(scope="module", autouse=True)
def _nodes_are_stopped() -> Iterator[None]:
    yield
    stop()
    stop_nodes()


every_target = pytest.mark.parametrize("name", TARGETS)


@every_target
def test_what_was_found_before_stays_fixed(name: str) -> None:
    """Run every file of the corpus, every seed, and the empty input."""
    target = TARGETS[name]
    inputs = {f"seed {number}": data for number, data in enumerate(target.seeds())}
    inputs |= {path.name: path.read_bytes() for path in corpus_files(name)} | {"empty": b""}
    for what, data in inputs.items():
        error = check(target, data)
        if error is not None:
            raise report(target, data, error, what)


@every_target
def test_a_short_burst_finds_nothing(name: str, seed: int) -> None:
    assert burst(TARGETS[name], seed, inputs_max=INPUTS) == INPUTS


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    assert {path.parent.name for path in files} <= set(TARGETS), "a folder that no target reads"


def test_the_fuzzer_finds_and_minimizes_what_lies_behind_a_checksum(seed: int) -> None:
    """The engine finds a planted bug that only batches with a valid CRC reach, and minimizes the input to one batch."""

    def faulty(data: bytes) -> None:
        if len(data) > 61 and data[16:17] == b"\x02":
            try:
                header = check_batch(data)
            except Exception:  # noqa: BLE001
                return
            assert not header.last_offset_delta > 40, "the planted fault"

    target = Target("planted", faulty, batches, sealed)
    with pytest.raises(AssertionError, match="the planted fault") as found:
        burst(target, seed, inputs_max=100_000)
    assert f"seed {seed}" in str(found.value)


def test_mutations_repeat_with_their_seed(seed: int) -> None:
    first, second = (Mutator(random.Random(seed), batches(), sealed) for _ in range(2))
    assert [first.next() for _ in range(200)] == [second.next() for _ in range(200)]


def test_the_guard_stops_what_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.fuzz_engine.SECONDS_MAX", 0.05)

    def endless(data: bytes) -> None:
        while True:
            time.sleep(0.001)

    error = check(Target("endless", endless, list), b"x")
    assert type(error).__name__ == "TooSlow"


def test_the_guard_sees_memory_that_an_input_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([10 << 20, 900 << 20])
    monkeypatch.setattr("tests.fuzz.fuzz_engine.peak_bytes", lambda: next(peaks))
    error = check(Target("greedy", lambda data: None, list), b"xyz")
    assert isinstance(error, AssertionError)
    assert "3 bytes made the process grow by 890 MiB" in str(error)


def test_minimizing_keeps_the_same_failure() -> None:
    def fails(data: bytes) -> None:
        if b"\x07" in data:
            raise ValueError("seven")
        assert b"\x08" not in data

    target = Target("minimized", fails, list)
    data = bytes(range(40)) * 3
    error = check(target, data)
    assert error is not None
    assert minimize(target, data, error) == b"\x07"
