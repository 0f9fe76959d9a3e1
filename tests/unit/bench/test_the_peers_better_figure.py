"""Kafka's throughput is measured under several settings: bench/measure.py uses the best figure, and names its
setting."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def samples_of(bench: Any, **values: list[float]) -> Any:
    """``kafka__batch_1m=[...]`` becomes the sample ``kafka@batch-1m``, in records per second."""
    names = {name: name.replace("__", "@").replace("_", "-") for name in values}
    return bench("measure").Samples(
        units=dict.fromkeys(names.values(), "rec/s"), values={names[name]: found for name, found in values.items()}
    )


def test_the_setting_with_the_highest_median_wins_not_the_one_with_the_best_round(bench: Any) -> None:
    samples = samples_of(bench, kafka__default=[5.0, 5.0, 5.0], kafka__batch_1m=[1.0, 9.0, 4.0])
    best = samples.best("kafka")
    assert (best.setting, best.median) == ("default", 5.0)


def test_of_costs_the_lowest_median_wins(bench: Any) -> None:
    samples = samples_of(bench, kafka__default=[5.0], kafka__batch_1m=[4.0])
    samples.units = dict.fromkeys(samples.units, "s/M")
    assert samples.best("kafka").setting == "batch-1m"


def test_a_ratio_is_to_the_peers_best_whatever_the_order_of_the_rounds(bench: Any) -> None:
    samples = samples_of(bench, ours=[12.0], kafka__batch_1m=[4.0], kafka__default=[3.0], kafka__batch_128k=[2.0])
    assert samples.ratio("ours", "kafka") == 3.0


def test_a_result_saved_before_there_were_settings_reads_as_it_did(bench: Any) -> None:
    samples = samples_of(bench, ours=[12.0], kafka=[4.0], kafka__other=[])
    assert samples.best("kafka").setting == ""
    assert samples.ratio("ours", "kafka") == 3.0
    assert samples.best("nobody") is None
    assert samples.ratio("ours", "nobody") is None


def test_a_longer_name_is_another_figure(bench: Any) -> None:
    samples = samples_of(bench, kafka__default=[4.0])
    samples.add("kafka.with-join@batch-1m", 9.0, "rec/s")
    assert samples.best("kafka").median == 4.0


def test_a_bar_is_judged_by_the_peers_best_setting_and_names_it(bench: Any) -> None:
    report = bench("report")
    samples = bench("measure").Samples()
    samples.add("headrace.produce.arrow.commit", 12.0, "rec/s")
    samples.add("kafka.producer-perf@default", 1.0, "rec/s")
    samples.add("kafka.producer-perf@batch-1m", 2.0, "rec/s")
    bars = [each for each in report.OF_ONE_REPLICA if each.path == "produce, `send_arrow`"]
    (verdict,) = report.verdicts(samples, bars)
    assert (verdict.measured, verdict.setting) == (6.0, "batch-1m")
    assert "| Kafka producer-perf (batch-1m) " in report.verdicts_table([verdict])
    assert report.settings_table(samples).splitlines()[-1] == "| `kafka.producer-perf` | 2 | 1 | rec/s | batch-1m |"


def test_each_setting_is_first_second_and_last_in_turn(bench: Any) -> None:
    settings = bench("kafka_node")
    rounds = [settings.turns(number) for number in range(3)]
    assert all(sorted(each.name for each in found) == sorted(s.name for s in settings.SETTINGS) for found in rounds)
    for place in range(3):
        assert len({found[place].name for found in rounds}) == 3
