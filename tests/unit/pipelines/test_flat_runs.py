"""The check that a figure of a long run is flat finds a leak, and passes a figure that goes up and down."""

from __future__ import annotations

import pytest

from tests.worlds.pipelines_world import GROWTH_MAX, growth, growth_of_peaks

#: Megabytes of a checkpoint of the fraud pipeline: the lowest and the highest of each minute of an hour.
HOUR = [
    *((0, 52), (53, 123), (124, 196), (146, 213), (150, 217), (151, 221), (150, 224), (152, 227), (157, 232)),
    *((155, 230), (152, 229), (145, 215), (139, 211), (147, 212), (147, 213), (142, 215), (142, 208), (139, 207)),
    *((141, 208), (139, 203), (143, 213), (161, 221), (158, 233), (138, 215), (124, 196), (131, 187), (132, 191)),
    *((131, 193), (135, 197), (127, 191), (128, 190), (123, 177), (135, 197), (156, 207), (159, 232), (162, 234)),
    *((163, 242), (169, 244), (163, 242), (149, 230), (145, 218), (146, 213), (147, 215), (147, 216), (149, 218)),
    *((149, 218), (143, 213), (144, 213), (149, 214), (151, 222), (157, 228), (158, 231), (155, 234), (162, 239)),
    *((168, 247), (164, 243), (165, 241), (165, 241), (162, 239), (165, 165)),
]


def leaking(values: list[float], share: float) -> list[float]:
    """The values, which grow by ``share`` over the last three quarters of the run."""
    first = len(values) // 4
    return [value * (1 + share * max(number - first, 0) / (len(values) - first)) for number, value in enumerate(values)]


def test_a_checkpoint_that_goes_up_and_down_is_flat() -> None:
    checkpoint = [float(value) for minute in HOUR for value in minute]
    assert growth_of_peaks(checkpoint) == pytest.approx(0.04, abs=0.005)
    assert growth_of_peaks(leaking(checkpoint, 0.15)) > GROWTH_MAX


@pytest.mark.parametrize("measure", [growth, growth_of_peaks])
def test_a_leak_is_found(measure: object) -> None:
    assert callable(measure)
    assert measure([100.0] * 3_600) == 0
    assert measure(leaking([100.0] * 3_600, 0.12)) > GROWTH_MAX > measure(leaking([100.0] * 3_600, 0.08))
