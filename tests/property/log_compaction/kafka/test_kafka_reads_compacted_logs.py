"""Apache Kafka's DumpLogSegments reads the files after a cleaning: segments, indexes, delete horizons, producer
snapshots.

Marked `kafka`: needs Java, and Maven for Kafka's jars.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_core.records import Compression
from headrace_core.testing.crashing_fs import Loss
from tests.worlds.compaction_world import DIRECTORY, Batch, CompactionWorld, Counts, batches_of

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[4]
TOOL = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = re.compile(r"mismatch|out of order|exception|corrupt|error", re.IGNORECASE)


def _tool_command() -> list[str]:
    if peers := os.environ.get("HEADRACE_PEERS"):
        return [sys.executable, str(Path(peers) / "kafka" / "cluster.py"), "tool", TOOL]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        import kafka_node

        return ["java", "-Xmx512m", "-cp", f"{kafka_node.jars()}/*", TOOL]


def _dump(*arguments: str) -> str:
    done = subprocess.run([*_tool_command(), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def _cleaned(tmp_path_factory: pytest.TempPathFactory, seed: int) -> tuple[Path, list[Batch], CompactionWorld]:
    """A log with all kinds of batches, cleaned three times, on the real disk; with its producers' snapshot."""
    world = CompactionWorld(seed, Counts())
    for _ in range(3):
        world.write(150)
        world.clean()
    directory = _copied(tmp_path_factory, world)
    (directory / f"{world.table.next_offset:020d}.snapshot").write_bytes(world.table.snapshot())
    return directory, batches_of(world.log), world


def _copied(tmp_path_factory: pytest.TempPathFactory, world: CompactionWorld) -> Path:
    """The log's files on the real disk."""
    directory = tmp_path_factory.mktemp("compacted") / "ledger-0"
    directory.mkdir()
    world.log.close()
    for path, data in world.fs.files().items():
        if path.startswith(DIRECTORY + "/"):
            (directory / path.rpartition("/")[2]).write_bytes(data)
    world.log = world.open_log(world.fs)
    return directory


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Batch], CompactionWorld]:
    return _cleaned(tmp_path_factory, 4711)


@pytest.fixture(scope="module")
def cleaned_of_every_codec(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Batch], CompactionWorld]:
    return _cleaned(tmp_path_factory, 4712)


def test_kafka_reads_every_record_that_was_left(cleaned: tuple[Path, list[Batch], CompactionWorld]) -> None:
    directory, batches, _ = cleaned
    output = _dump("--deep-iteration", "--files", ",".join(map(str, sorted(directory.glob("*.log")))))
    assert "isvalid: false" not in output.lower()
    records = [record.offset for batch in batches for record in batch.records]
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", output, re.MULTILINE)] == records
    bases = [batch.header.base_offset for batch in batches]
    assert [int(offset) for offset in re.findall(r"^baseOffset: (\d+) ", output, re.MULTILINE)] == bases
    horizons = [batch.horizon_ms for batch in batches if batch.horizon_ms is not None]
    assert horizons, "the test wants delete horizons"
    assert [int(ms) for ms in re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", output)] == horizons
    assert any(not batch.records for batch in batches), "the test wants empty batches"
    assert any(batch.header.is_control for batch in batches)


def test_kafka_prints_the_keys_and_sizes_of_what_was_left(
    cleaned_of_every_codec: tuple[Path, list[Batch], CompactionWorld],
) -> None:
    """Batches of every codec, tombstones among them; the printed sizes are those of the values (-1: a tombstone)."""
    directory, batches, _ = cleaned_of_every_codec
    assert {batch.header.compression for batch in batches if batch.records} == set(Compression)
    output = _dump("--print-data-log", "--files", ",".join(map(str, sorted(directory.glob("*.log")))))
    printed = re.compile(r"^\| offset: (\d+) .*?valueSize: (-?\d+) .*? key: (key-\d+)", re.MULTILINE)
    expected = [
        (record.offset, -1 if record.value is None else len(record.value), record.key.decode())
        for batch in batches
        if not batch.header.is_control
        for record in batch.records
        if record.key is not None
    ]
    assert any(size == -1 for _, size, _ in expected), "the test wants tombstones"
    assert [(int(offset), int(size), key) for offset, size, key in printed.findall(output)] == expected


def _indexes(directory: Path, batches: list[Batch]) -> list[Path]:
    """Return no indexes of segments that have only batch headers left, in which Kafka's tool finds no record for the
    one time entry."""
    with_records = {batch.segment for batch in batches if batch.records}
    assert with_records
    return sorted(
        path
        for path in directory.iterdir()
        if path.suffix == ".index" or (path.suffix == ".timeindex" and int(path.stem) in with_records)
    )


def test_kafka_finds_no_mismatch_in_the_indexes(
    cleaned: tuple[Path, list[Batch], CompactionWorld],
    cleaned_of_every_codec: tuple[Path, list[Batch], CompactionWorld],
) -> None:
    """The second log crashed and continued, so recovery has built some of its indexes."""
    indexes = [
        path for directory, batches, _ in (cleaned, cleaned_of_every_codec) for path in _indexes(directory, batches)
    ]
    output = _dump("--verify-index-only", "--files", ",".join(map(str, indexes)))
    assert not COMPLAINTS.search(output), output


def test_kafka_finds_no_mismatch_in_indexes_that_recovery_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    indexes: list[Path] = []
    for seed in range(4713, 4723):
        world = CompactionWorld(seed, Counts())
        for _ in range(3):
            world.write(60)
            world.clean_without_crashes()
        world.fs.crash(loss=Loss.NONE)
        world.log = world.open_log(world.fs)
        indexes += _indexes(_copied(tmp_path_factory, world), batches_of(world.log))
    assert len(indexes) > 40
    output = _dump("--verify-index-only", "--files", ",".join(map(str, indexes)))
    assert not COMPLAINTS.search(output), output


def test_kafka_reads_the_producers_snapshot(cleaned: tuple[Path, list[Batch], CompactionWorld]) -> None:
    directory, _, world = cleaned
    output = _dump("--files", str(max(directory.glob("*.snapshot"))))
    entry_line = re.compile(r"producerId: (\d+) producerEpoch: (\d+) .*?currentTxnFirstOffset: (\S+)")
    found = {}
    for producer_id, epoch, first_offset in entry_line.findall(output):
        number = re.search(r"\d+", first_offset)
        found[int(producer_id)] = (int(epoch), int(number[0]) if number else -1)
    expected = {
        entry.producer_id: (
            entry.epoch,
            -1 if entry.transaction_first_offset is None else entry.transaction_first_offset,
        )
        for entry in world.table
    }
    assert found == expected, output
