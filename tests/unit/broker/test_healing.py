"""The recovery of a damaged replica, which does not depend on the controllers' decisions about the partition."""

from __future__ import annotations

import itertools

import pytest

from headrace_broker.partition.healing import Step, next_step
from headrace_core.metadata import PartitionImage

ME = 1


def _state(
    *,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
    replicas: tuple[int, ...] = (1, 2, 3),
) -> PartitionImage:
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=5,
        partition_epoch=9,
        directories=(b"d" * 16,) * len(replicas),
        elr=elr,
        last_known_elr=last_known,
    )


@pytest.mark.parametrize(
    ("why", "state", "step"),
    [
        ("there is no other replica", _state(leader=1, isr=(1,), replicas=(1,)), Step.KEEP),
        ("the others are behind", _state(leader=1, isr=(1,)), Step.KEEP),
        ("the others are behind, and nobody leads", _state(leader=-1, isr=(), elr=(1,)), Step.KEEP),
        ("nobody leads, and I led last", _state(leader=-1, isr=(), last_known=(1,)), Step.KEEP),
        ("it is none of mine", _state(leader=2, isr=(2, 3), replicas=(2, 3)), Step.KEEP),
        ("I lead, and another may", _state(leader=1, isr=(1, 2)), Step.REPORT),
        ("I lead, and another is eligible", _state(leader=1, isr=(1,), elr=(3,)), Step.REPORT),
        ("I follow in sync", _state(leader=2, isr=(1, 2)), Step.REPORT),
        ("I am eligible", _state(leader=2, isr=(2,), elr=(1,)), Step.REPORT),
        ("I led last", _state(leader=2, isr=(2,), last_known=(1,)), Step.REPORT),
        ("nobody leads, and another may", _state(leader=-1, isr=(), elr=(2,)), Step.WAIT),
        ("another leads, and I count for nothing", _state(leader=2, isr=(2, 3)), Step.MAKE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_done(why: str, state: PartitionImage, step: Step) -> None:
    assert next_step(state, ME) is step, why


def test_a_log_is_never_deleted_while_its_broker_may_be_elected_or_nobody_else_leads() -> None:
    every = [(), (1,), (2,), (1, 2)]
    for leader, isr, elr, last in itertools.product((-1, 1, 2), every, every, every):
        state = _state(leader=leader, isr=isr, elr=elr, last_known=last)
        if next_step(state, ME) is Step.MAKE:
            assert leader == 2, state
            assert ME not in (*isr, *elr, *last), state
