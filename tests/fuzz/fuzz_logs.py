"""Targets: recovery of any bytes, interrupted swaps of any files, compaction of any log with sound framing, dump."""

# ruff: noqa: PT017 - a typed error is one of the right answers here, and its words are checked
from __future__ import annotations

import random
import struct
from typing import Any

from headrace_core.errors import CorruptLogError, CorruptMessageError, HeadraceError
from headrace_core.log import Append, LogConfig, PartitionLog
from headrace_core.log.compaction import _cleaning, _pure
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.log.compaction.planning import Target as CleaningTarget
from headrace_core.log.compaction.transactions import TransactionHistory, TransactionJudge
from headrace_core.log.dump import Problem, dump
from headrace_core.log.swap import finish_swaps
from headrace_core.log.verify import verify
from headrace_core.records import HEADER_BYTES, check_batch, decode_batch, read_header
from headrace_core.records.batches import iterate_headers
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_core.types import TopicPartition
from tests.fuzz.fuzz_engine import Reader, Target, chunks
from tests.fuzz.fuzz_records import outcome
from tests.fuzz.fuzz_seeds import framed, logs, marker, rebased, sealed_after
from tests.worlds.compaction_world import Batch, batches_of, committed, latest_values, transactions_of

ROOT = "/data"
DIRECTORY = "/data/orders-0"
PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_100_000


def _config(compact: bool) -> LogConfig:
    return LogConfig(
        segment_bytes=1 << 20,
        index_interval_bytes=150,
        segment_index_bytes=1200,
        cleanup_compact=compact,
        cleanup_delete=not compact,
    )


def _disk(files: dict[str, bytes]) -> CrashingFileSystem:
    fs = CrashingFileSystem(keep_trace=False)
    for path in (ROOT, DIRECTORY):
        fs.mkdir(path)
    fs.sync_directory("/")
    fs.sync_directory(ROOT)
    for name, data in files.items():
        fs.replace(f"{DIRECTORY}/{name}", data)
    return fs


def _open(fs: CrashingFileSystem, config: LogConfig, **options: Any) -> PartitionLog:
    return PartitionLog.open(
        fs, DIRECTORY, PARTITION, config, clock=ManualClock(NOW_MS), rng=random.Random(1), **options
    )


# ---------------------------------------------------------------------------------------------- recovery


def recovery(data: bytes) -> None:
    """Recover a log whose segments are any bytes. Recovery raises CorruptLogError and changes nothing, or it keeps the
    whole sound prefix and serves only sound data. After recovery, a second start changes nothing."""
    reader = Reader(data)
    choices, base, recovery_point = reader.integer(1), reader.integer(1), reader.integer(1)
    config = _config(bool(choices & 1))
    files, expected_end = _segments(reader.rest, base if choices & 2 else 0, split=bool(choices & 4))
    point = recovery_point if choices & 8 else 0
    if choices & 16:
        files["leader-epoch-checkpoint"] = b"0\n1\n0 0\n"
    if choices & 32:
        files[min(files).removesuffix(".log") + ".index"] = struct.pack(">II", choices, base)
    fs = _disk(files)
    before = fs.files()
    clean = {"clean": True} if choices & 64 else {}
    try:
        log = _open(fs, config, recovery_point=point, **clean)
    except CorruptLogError as error:
        assert DIRECTORY in error.message
        assert fs.files() == before, "a log that is not served was changed"
        return
    if not clean:
        assert log.log_end_offset >= expected_end, f"a sound prefix was lost: {log.log_end_offset} < {expected_end}"
    served = _read_all(log)
    log.flush()
    assert log.log_end_offset >= point or not clean
    after = {path: content for path, content in fs.files().items() if path.endswith((".log", "-checkpoint"))}
    ends = log.log_start_offset, log.log_end_offset
    again = _open(fs, config, recovery_point=0)
    assert (again.log_start_offset, again.log_end_offset) == ends
    assert _read_all(again) == served
    for path, content in after.items():
        assert fs.files().get(path) == content, f"the second start changed {path}"
    again.close()
    third = _open(fs, config, recovery_point=ends[1], clean=True)
    assert (third.log_start_offset, third.log_end_offset) == ends
    assert _read_all(third) == served
    _append_and_read(third)


def _segments(data: bytes, base: int, *, split: bool) -> tuple[dict[str, bytes], int]:
    """Split the bytes into one segment, or into two at the end of a sound batch. Return also the smallest possible end
    of the sound prefix."""
    ends, offset, epoch, prefix = [0], base, -1, 0
    for position, _ in framed(data):
        try:
            header = check_batch(data, position)
        except CorruptMessageError:
            break
        bad_epoch = header.leader_epoch < epoch
        if position != ends[-1] or header.base_offset != offset or bad_epoch or header.last_offset - base >= 2**31:
            break
        offset, epoch, prefix = header.next_offset, max(epoch, header.leader_epoch), position + header.size
        ends.append(prefix)
    if split and len(ends) > 2:
        middle = ends[len(ends) // 2]
        second = read_header(data, middle).base_offset if middle < len(data) - HEADER_BYTES else offset
        return {f"{base:020d}.log": data[:middle], f"{second:020d}.log": data[middle:]}, offset
    return {f"{base:020d}.log": data}, offset


def _read_all(log: PartitionLog) -> bytes:
    """Read everything. Check each batch, and that offsets ascend."""
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 300)
        assert result is not None
        assert offset < result.next_offset <= log.log_end_offset
        found, offset = found + result.records, result.next_offset
    last = -1
    for position, header in iterate_headers(found):
        check_batch(found, position)
        assert header.base_offset > last, "offsets go back"
        last = header.last_offset
    outcome(lambda: log.offset_for_timestamp(0))
    outcome(log.offset_of_max_timestamp)
    return found


def _append_and_read(log: PartitionLog) -> None:
    batch = logs()[1][: read_header(logs()[1]).size]
    epoch = max(log.epochs.latest_epoch, 0)
    (done,) = log.append_many([Append(data=batch, leader_epoch=epoch, headers=[read_header(batch)])])
    if isinstance(done, HeadraceError):
        return
    result = log.read(done.base_offset, 1 << 20)
    assert result is not None
    assert [record.value for record in decode_batch(result.records)] == [None]


# ---------------------------------------------------------------------------------------------- swaps

_STEMS = tuple(f"{offset:020d}" for offset in (0, 2, 5, 100))
_SUFFIXES = (".log", ".log.swap", ".log.cleaned", ".index", ".index.swap", ".timeindex.swap", ".txnindex.swap")


def swaps(data: bytes) -> None:
    """Start on any files, as if a compaction had been interrupted. The start raises CorruptLogError and changes
    nothing, or leaves no .swap file. A second start changes nothing. A .log file is removed only if a swapped segment
    replaces it."""
    reader = Reader(data)
    files = {}
    while reader.rest and len(files) < 8:
        which = reader.integer(1)
        name = _STEMS[which & 3] + _SUFFIXES[(which >> 2) % len(_SUFFIXES)]
        files[name] = reader.chunk()
    fs = _disk(files)
    before = fs.files()
    try:
        finish_swaps(fs, DIRECTORY)
    except CorruptLogError as error:
        assert ".log.swap" in error.message
        assert fs.files() == before, "a swap that is refused changed something"
        return
    after = fs.files()
    assert not [path for path in after if path.endswith(".swap")]
    assert finish_swaps(fs, DIRECTORY) == []
    assert fs.files() == after
    swapped = {int(name[:20]): rest for name, rest in files.items() if name.endswith(".log.swap")}
    for name, content in files.items():
        if not name.endswith(".log"):
            continue
        at = int(name[:20])
        covered = [base for base, rest in swapped.items() if base <= at < _next_offset(rest, base)]
        if not covered:
            assert after.get(f"{DIRECTORY}/{name}") == content, f"{name} went, and nothing stands for it"


def _next_offset(data: bytes, base: int) -> int:
    end = base
    for position, _ in framed(data):
        end = read_header(data, position).next_offset
    return end


def _swap_seeds() -> list[bytes]:
    first, second, third = logs()[1], rebased([logs()[1][: read_header(logs()[1]).size]] * 3, 2), logs()[3]

    def files(*items: tuple[int, int, bytes]) -> bytes:
        return b"".join(bytes([stem | suffix << 2]) + chunks(data) for stem, suffix, data in items)

    return [
        files((0, 0, first), (1, 0, second), (0, 1, first), (0, 4, bytes(8)), (0, 5, bytes(12))),
        files((0, 0, second), (1, 1, second), (3, 0, third), (3, 4, b"")),
        files((0, 1, b""), (0, 0, first)),
        files((0, 2, first), (0, 0, first), (1, 6, b"x")),
    ]


def _sealed_swap(data: bytes, rng: random.Random) -> bytes:
    """Give batches inside of the files valid CRCs. Each part of the input is tried, because a batch can begin
    anywhere."""
    reader, out = Reader(data), b""
    seal = sealed_after(0)
    while reader.rest and len(out) < 1 << 15:
        head, body = reader.bytes(1), reader.chunk()
        out += head + chunks(seal(body, rng)[:0xFFFF])
    return out


# ---------------------------------------------------------------------------------------------- compaction


def compacting(data: bytes) -> None:
    """Clean any log whose batches have valid CRCs. The cleaning ends with a typed error, or leaves the latest values in
    order and adds nothing. The compiled filter and the Python filter leave the same bytes."""
    reader = Reader(data)
    choices, memory = reader.integer(1), reader.integer(1)
    batches = _sound_batches(reader.rest)
    whole = rebased(batches)
    _filters_agree(whole, memory)
    fs = _disk({})
    log = _open(fs, _config(compact=True))
    for number, (position, header) in enumerate(iterate_headers(whole)):
        batch = whole[position : position + header.size]
        # Append as a replica, because a replica also accepts batches that producers may not send.
        (done,) = log.append_many([Append(data=batch, leader_epoch=0, headers=[header], replicated=True)])
        assert not isinstance(done, Exception), done
        if number % (choices % 5 + 1) == 0:
            log.roll()
    log.roll()
    log.flush()
    target = CleaningTarget(PARTITION, log.log_start_offset, log.log_end_offset, 0, log.size_bytes, False)
    cleaner = Cleaner(
        fs,
        CleanerConfig(dedupe_buffer_bytes=24 * (memory + 4), io_buffer_bytes=choices * 8 + 61),
        clock=ManualClock(NOW_MS),
        secret=bytes(16),
    )
    kind, before = outcome(lambda: batches_of(log))
    if kind != "ok" or not all(
        map(_has_sound_key, before)
    ):  # the records cannot be read; the cleaning may raise the same error, and must then not change the log
        files = fs.files()
        kind, _ = outcome(lambda: _clean(cleaner, log, target))
        assert kind == "ok" or {k: v for k, v in fs.files().items() if k.endswith(".log")} == {
            k: v for k, v in files.items() if k.endswith(".log")
        }
        return
    ends = log.log_start_offset, log.log_end_offset
    for _ in range(2):
        kind, _ = outcome(lambda: _clean(cleaner, log, target))
        after = batches_of(log)
        offsets = [record.offset for batch in after for record in batch.records]
        assert offsets == sorted(set(offsets))
        old, new = committed(before), committed(after)
        assert latest_values(new) == latest_values(old)
        assert set(new) <= set(old)
        assert transactions_of(after).open_from == transactions_of(before).open_from
        if kind != "ok":
            break
    _read_all(log)
    log.flush()
    again = _open(fs, _config(compact=True))
    assert (again.log_start_offset, again.log_end_offset) == ends


def _has_sound_key(batch: Batch) -> bool:
    """Whether the batch is no control batch, or is a control batch with a known type."""
    return not batch.header.is_control or all(len(record.key or b"") >= 4 for record in batch.records)


def _clean(cleaner: Cleaner, log: PartitionLog, target: CleaningTarget) -> Any:
    return cleaner.clean(log, target, execute=lambda action: action(), producers={})


def _sound_batches(data: bytes) -> list[bytes]:
    found, total = [], 0
    for position, size in framed(data):
        batch = data[position : position + size]
        try:
            header = check_batch(batch)
        except CorruptMessageError:
            continue
        total += header.last_offset_delta + 1
        if total >= 2**31 or len(found) >= 60:
            break
        found.append(struct.pack(">qii", 0, header.batch_length, 0) + batch[16:])
    return found


def _filters_agree(data: bytes, memory: int) -> None:
    """Run _cleaning.pyx and its Python version on the same bytes."""
    aborted: list[Any] = []
    found = []
    for module in (_pure, _cleaning):
        history = TransactionHistory()
        scanned = outcome(lambda module=module, history=history: module.scan_batches(data, history.observe))
        aborted.append(list(history.aborted) if scanned[0] == "ok" else None)
        offsets: Any = module.OffsetMap(24 * (memory + 4), bytes(16), 0.9)
        indexer = module.KeyIndexer(offsets, 0, TransactionJudge(history.aborted, NOW_MS).judge)
        indexed = outcome(lambda indexer=indexer: indexer.feed(data))
        keep = module.BatchFilter(
            offsets,
            latest=indexer.latest,
            keep_next_offset=-5,
            judge=TransactionJudge(history.aborted, NOW_MS).judge,
            last_offsets={7: 3},
            marker_epochs={8: 0},
            now_ms=NOW_MS,
            horizon_ms=NOW_MS + 10,
        )
        fed = outcome(lambda keep=keep: keep.feed(data))
        out, metas = keep.take()
        found.append(
            (
                scanned if scanned[0] == "ok" else scanned[0],
                indexed if indexed[0] == "ok" else indexed[0],
                indexer.latest,
                offsets.size,
                fed if fed[0] == "ok" else fed[0],
                _contents(bytes(out)) if fed[0] == "ok" else None,
                [tuple(meta)[1:] for meta in metas] if fed[0] == "ok" else None,
            )
        )
    assert aborted[0] == aborted[1], f"aborted: pure {aborted[0]}, native {aborted[1]}"
    for number, (pure, native) in enumerate(zip(*found, strict=True)):
        assert pure == native, f"answer {number}: pure {pure}, native {native}"


def _contents(data: bytes) -> list[Any]:
    """Headers and records: the compiled filter keeps the bytes of a record, but the Python filter encodes the record
    again. The bytes differ if an integer is not in its shortest form."""
    return [
        (
            header._replace(batch_length=0, crc=0),
            outcome(
                lambda position=position: [  # type: ignore[misc]
                    (r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_batch(data, position)
                ]
            ),
        )
        for position, header in iterate_headers(data)
    ]


def _log_seeds() -> list[bytes]:
    more = rebased([marker(0), marker(1, producer_id=8), marker(5)])
    return [b"\3\x20" + item for item in (*logs(), more, logs()[2] + logs()[1])]


# ---------------------------------------------------------------------------------------------- dump


def dumping(data: bytes) -> None:
    """`headrace log dump --deep` and `log verify` of any files print lines and named problems, raise no exception, and
    change nothing. A log without problems in verify can be served."""
    reader = Reader(data)
    stem = f"{reader.integer(1):020d}"
    files = {f"{stem}{suffix}": reader.chunk() for suffix in (".index", ".timeindex")}
    files["leader-epoch-checkpoint"], files["partition.metadata"] = reader.chunk(), reader.chunk()
    files[f"{stem}.log"] = reader.rest
    fs = _disk(files)
    before = fs.files()
    for name in (DIRECTORY, *(f"{DIRECTORY}/{stem}{suffix}" for suffix in (".log", ".index", ".timeindex"))):
        for line in dump(name, deep=True, fs=fs):
            str(line)
    for name in (DIRECTORY, f"{DIRECTORY}/{stem}.log"):
        found = [line for line in verify(name, fs=fs) if isinstance(line, Problem)]
        assert all(line.path.startswith(DIRECTORY) and line.what for line in found)
        if name == DIRECTORY and not found:
            _check_served(fs)
    assert fs.files() == before


def _check_served(fs: CrashingFileSystem) -> None:
    """If ``verify`` finds no problem, the log opens and serves every byte."""
    log = _open(fs.crash_clone(loss=Loss.NONE), _config(compact=True))
    assert _read_all(log) == b"".join(segment.log.pread(segment.size, 0) for segment in log.segments)


TARGETS = (
    Target(
        "recovery",
        recovery,
        lambda: (
            [bytes([choices, 0, 0]) + item for choices in (0, 1, 4, 8, 20, 64) for item in logs()[:3]]
            + [b"\2\x64\0" + logs()[3]]
        ),
        sealed_after(3),
    ),
    Target("swaps", swaps, _swap_seeds, _sealed_swap),
    Target("compaction", compacting, _log_seeds, sealed_after(2)),
    Target(
        "dumping",
        dumping,
        lambda: [b"\0" + chunks(bytes(16), bytes(24), b"0\n0\n", b"version: 0\n") + logs()[0]],
        sealed_after(0),
    ),
)
