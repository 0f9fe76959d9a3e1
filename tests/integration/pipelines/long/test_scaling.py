"""Scenes of the pipeline scaling on a real cluster. The run checks itself; here pandas counts a second time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headrace.partitioners import key_partition
from headrace_pipelines.scaling.schema import traffic
from tests.worlds.pipelines_world import Run

pytestmark = pytest.mark.timeout(300)

RATE = 1_000
COLUMNS = ["partition", "offset", "key", "n", "at_ns", "ended_ns", "word"]


@pytest.fixture
def played(headrace: Any, tmp_path: Path) -> Any:
    """Runs scenes; the answer is the summary."""

    def play(*scenes: str) -> dict[str, Any]:
        servers = headrace.bootstrap_servers
        flags = ["--bootstrap-servers", servers, "--scenes", ",".join(scenes), "--rate", str(RATE), "--without-spark"]
        run = Run("scaling", tmp_path, flags)
        try:
            return run.summary()
        finally:
            run.kill()

    return play


def notes(tmp_path: Path, scene: str) -> pd.DataFrame:
    """The notes of a scene in the order of handling."""
    files = sorted((tmp_path / "out/notes" / scene).glob("*"))
    frames = [pd.read_csv(path, sep=" ", names=COLUMNS).assign(member=path.name) for path in files]
    return pd.concat(frames).sort_values("at_ns", ignore_index=True)


def keys_out_of_order(handled: pd.DataFrame) -> set[str]:
    first = handled.drop_duplicates(["key", "n"])
    return {str(key) for key, n in first.groupby("key")["n"] if not n.is_monotonic_increasing}


def keys_with_overlaps(handled: pd.DataFrame) -> set[str]:
    begun = handled.sort_values(["key", "at_ns"])
    previous = begun.groupby("key")["ended_ns"].cummax().groupby(begun["key"]).shift()
    return set(begun["key"][begun["at_ns"] < previous])


def test_raised_partitions_break_the_order_of_keys_unless_the_group_has_drained(played: Any, tmp_path: Path) -> None:
    summary = played("partitions", "drained")
    keys = {key for key, _ in traffic(summary["partitions"]["records"], 1)}
    moved = {key.decode() for key in keys if key_partition(key, 4) != key_partition(key, 8)}
    out_of_order = keys_out_of_order(notes(tmp_path, "partitions"))
    assert 0 < len(out_of_order) == summary["partitions"]["keys_out_of_order"]
    assert out_of_order <= moved
    assert summary["partitions"]["keys_moved"] == len(moved)
    assert keys_out_of_order(notes(tmp_path, "drained")) == set()
    assert summary["drained"]["keys_out_of_order"] == 0
    assert notes(tmp_path, "drained").groupby("key")["partition"].nunique().max() == 2, "keys did move"


def test_one_member_more_than_partitions_is_idle(played: Any, tmp_path: Path) -> None:
    summary = played("members")["members"]
    assert (summary["members_with_records"], summary["members_idle"], summary["keys_out_of_order"]) == (4, 1, 0)
    handled = notes(tmp_path, "members")
    assert handled.groupby("member")["partition"].nunique().tolist() == [1, 1, 1, 1]
    assert len(handled.drop_duplicates(["partition", "offset"])) == len(handled) == summary["records"] == 3 * RATE
    assert not summary["rebalanced"]


def test_rows_concurrency_and_a_cache_handle_every_record_in_the_order_of_its_key(played: Any, tmp_path: Path) -> None:
    summary = played("rows", "batches", "concurrent", "cached")
    for scene, figures in summary.items():
        handled = notes(tmp_path, scene)
        assert not handled.duplicated(["partition", "offset"]).any(), "handled once: no member died or changed"
        assert len(handled) == figures["records"]
        assert keys_out_of_order(handled) == keys_with_overlaps(handled) == set()
        assert (figures["rebalanced"], figures["handled_again"], figures["keys_overlapping"]) == (False, 0, 0)
    concurrent = notes(tmp_path, "concurrent")
    assert (concurrent["at_ns"] < concurrent["ended_ns"].cummax().shift()).any(), "keys are handled at the same time"
    for scene in ("rows", "batches"):
        with closing(sqlite3.connect(tmp_path / f"out/{scene}.db")) as database:
            ((count, total),) = database.execute("SELECT COUNT(*), SUM(n) FROM handled").fetchall()
        assert (count, total) == (
            summary[scene]["records"],
            notes(tmp_path, scene)["n"].sum(),
        )
    cached = notes(tmp_path, "cached")
    assert summary["cached"]["calls"] == (cached["word"] == "miss").sum()
    assert cached["key"].nunique() <= summary["cached"]["calls"] < 0.6 * len(cached)
