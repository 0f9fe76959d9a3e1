"""What the loss of a broker means for its partitions."""

from __future__ import annotations

import pytest

from headrace.cluster_models import PartitionDescription, TopicDescription
from headrace_console.impact import Risk, impact_of


def topic(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> TopicDescription:
    part = PartitionDescription(0, leader, 1, replicas, isr)
    return TopicDescription("orders", b"", False, (part,))


@pytest.mark.parametrize(
    ("leader", "isr", "is_alive", "minimum", "risk"),
    [
        (2, (2, 3), False, 2, Risk.FEWER_COPIES),
        (2, (2,), False, 2, Risk.READ_ONLY),
        (2, (2,), False, 1, Risk.LAST_COPY),
        (-1, (1,), False, 2, Risk.OFFLINE),
        (1, (1, 2, 3), True, 2, Risk.FEWER_COPIES),
        (1, (1, 2), True, 2, Risk.READ_ONLY),
        (1, (1,), True, 1, Risk.OFFLINE),
        (2, (1, 2), True, None, Risk.LAST_COPY),
    ],
)
def test_risk_of_a_partition(
    leader: int, isr: tuple[int, ...], is_alive: bool, minimum: int | None, risk: Risk
) -> None:
    minimums = {} if minimum is None else {"orders": minimum}
    impact = impact_of(1, [topic(leader, (1, 2, 3), isr)], is_alive=is_alive, min_insync=minimums)
    assert [each.risk for each in impact.partitions] == [risk]
    assert impact.counts()[risk] == 1


def test_a_broker_without_partitions_endangers_nothing() -> None:
    impact = impact_of(9, [topic(1, (1, 2), (1, 2))], is_alive=True, min_insync={})
    assert impact.partitions == ()
    assert impact.sentence == "Nothing depends on broker 9: it stores no partition."
