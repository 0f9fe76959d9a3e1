"""Apache Kafka's DumpLogSegments reads the files that our broker wrote for our SDK, and finds nothing wrong.

Marked `kafka`: needs Java, and Maven for Kafka's jars. If the test is selected and Java or a jar is missing, it fails;
it is not skipped.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace_core.clock import SystemClock
from headrace_core.log import LogConfig, PartitionLog, RealFileSystem
from headrace_core.log.dump import ProducerLine, dump
from headrace_core.records import encode_batch
from headrace_core.types import TopicPartition

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[4]
TOOL = "org.apache.kafka.tools.DumpLogSegments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 3_000

#: The text that DumpLogSegments prints when an index does not match its log.
COMPLAINTS = re.compile(r"mismatch|out of order|exception|corrupt|error", re.IGNORECASE)

DumpLog = Callable[..., str]


def _tool_command() -> list[str]:
    """The command that starts the tool: the script in HEADRACE_PEERS if that is set (CI), or else the jars of this
    checkout."""
    if peers := os.environ.get("HEADRACE_PEERS"):
        script = Path(peers) / "kafka" / "cluster.py"
        assert script.exists(), f"HEADRACE_PEERS={peers}: {script} is missing"
        fetched = subprocess.run([sys.executable, str(script), "fetch"], capture_output=True, text=True, timeout=500)
        assert fetched.returncode == 0, f"Kafka's jars could not be fetched:\n{fetched.stdout}{fetched.stderr}"
        return [sys.executable, str(script), "tool", TOOL]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        import kafka_node

        return ["java", "-Xmx512m", "-cp", f"{kafka_node.jars()}/*", TOOL]


@pytest.fixture(scope="module")
def dump_log() -> DumpLog:
    command = _tool_command()

    def run(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Codec -> its partition's directory. The SDK has written RECORDS records to each partition, and the cluster is
    stopped. Segments are small and the index is dense, so there are rolled segments and many index entries to check.
    """
    random_bytes = random.Random(3)
    data = tmp_path_factory.mktemp("dump-log")
    with LocalCluster(brokers=1, controllers=1, coordinators=0, data=data) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            config = {"segment.bytes": "65536", "index.interval.bytes": "1024"}
            admin.create_topics(
                [NewTopic(f"dump-{codec}", partitions=1, replication_factor=1, config=config) for codec in CODECS]
            )
        for codec in CODECS:
            with Producer(
                bootstrap_servers=cluster.bootstrap_servers, compression_type=codec, linger_ms=0, batch_size=2_000
            ) as producer:
                for number in range(RECORDS):
                    producer.send(
                        f"dump-{codec}",
                        value=None if number % 101 == 0 else random_bytes.randbytes(random_bytes.randrange(120)),
                        key=b"key-%d" % number if number % 3 else None,
                        headers=[("trace", b"%d" % number), ("empty", None)] if number % 7 == 0 else None,
                        timestamp_ms=1_700_000_000_000 + number * 7 - number % 5,
                    )
                producer.flush(timeout=30)
    found = {}
    for codec in CODECS:
        (found[codec],) = [path for path in data.rglob(f"dump-{codec}-0") if path.is_dir()]
    return found


def _segments(partition: Path) -> list[Path]:
    return sorted(partition.glob("*.log"))


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_reads_every_record_of_every_segment(codec: str, written: dict[str, Path], dump_log: DumpLog) -> None:
    partition = written[codec]
    segments = _segments(partition)
    assert len(segments) > 1, "the test wants rolled segments"
    output = dump_log("--deep-iteration", "--files", ",".join(map(str, segments)))
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", output, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert "isvalid: false" not in output.lower()
    assert re.findall(r"isvalid: (\w+)", output).count("true") > len(segments)
    codecs = set(re.findall(r"compresscodec: (\w+)", output))
    assert codecs == {codec}


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_finds_no_mismatch_in_offset_and_time_indexes(
    codec: str, written: dict[str, Path], dump_log: DumpLog
) -> None:
    partition = written[codec]
    indexes = sorted([*partition.glob("*.index"), *partition.glob("*.timeindex")])
    assert sum(path.stat().st_size for path in partition.glob("*.index")) > 8 * len(_segments(partition))
    output = dump_log("--verify-index-only", "--files", ",".join(map(str, indexes)))
    assert not COMPLAINTS.search(output), output
    assert all(path.name in output for path in indexes), output


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_kafka_names_a_wrong_index_entry(
    suffix: str, written: dict[str, Path], dump_log: DumpLog, tmp_path: Path
) -> None:
    """The check can fail: it finds an index entry with a wrong position."""
    log = _segments(written["none"])[0]
    for extension in ("log", "index", "timeindex"):
        (tmp_path / f"{log.stem}.{extension}").write_bytes(log.with_suffix(f".{extension}").read_bytes())
    damaged = tmp_path / f"{log.stem}.{suffix}"
    entries = bytearray(damaged.read_bytes())
    entries[3 if suffix == "index" else 7] ^= 1  # the last byte of the first entry's offset, or of its time
    damaged.write_bytes(entries)
    output = dump_log("--verify-index-only", "--files", str(damaged))
    assert COMPLAINTS.search(output), output


def test_kafka_names_a_flipped_byte(written: dict[str, Path], dump_log: DumpLog, tmp_path: Path) -> None:
    """The check can fail: DumpLogSegments finds damage that the test does to a copy."""
    first = _segments(written["none"])[0]
    damaged = bytearray(first.read_bytes())
    damaged[200] ^= 0xFF
    copy = tmp_path / first.name
    copy.write_bytes(damaged)
    output = dump_log("--deep-iteration", "--files", str(copy))
    assert "isvalid: false" in output or "exception" in output.lower(), output[:2000]


def test_kafka_reads_our_producer_snapshots_as_our_own_dump_does(dump_log: DumpLog, tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    log = PartitionLog.open(
        RealFileSystem(),
        str(directory),
        TopicPartition("orders", 0),
        LogConfig(segment_bytes=4_000),
        clock=SystemClock(),
        clean=True,
    )
    for number in range(120):
        fields = {"producer_id": 1_000 + number % 7, "producer_epoch": number % 7, "base_sequence": number // 7 * 2}
        log.append(encode_batch([(1_700_000_000_000 + number, None, b"v" * 20, [])] * 2, **fields), leader_epoch=0)
    log.close()
    snapshots = sorted(directory.glob("*.snapshot"))
    assert len(snapshots) > 3
    for path in snapshots:
        ours = {
            (
                line.producer_id,
                line.producer_epoch,
                line.last_timestamp_ms,
                line.last_sequence - line.offset_delta,
                line.last_sequence,
                line.last_offset,
                line.offset_delta,
            )
            for line in dump(str(path))
            if isinstance(line, ProducerLine)
        }
        output = dump_log("--files", str(path))
        assert not COMPLAINTS.search(output), output
        found = re.findall(
            r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: -1 currentTxnFirstOffset: \S+ "
            r"lastTimestamp: (\d+) firstSequence: (\d+) lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+) ",
            output,
            re.MULTILINE,
        )
        assert {tuple(map(int, row)) for row in found} == ours
        assert len(ours) == 7
