"""How long a producer looks for a partition that its metadata lacks."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.producer.core import ProducerCore
from headrace_core.errors import InvalidArgumentError


@pytest.mark.parametrize(("max_block_s", "looks"), [(0.0, 1), (0.1, 2), (60.0, 4)])
def test_a_missing_partition_is_an_error_within_max_block_ms(max_block_s: float, looks: int) -> None:
    """A look after the timeout has no time for an answer: its error hid that the partition does not exist."""
    left_s: list[float] = []

    async def refresh(topics: list[str], *, deadline: float) -> None:
        left_s.append(deadline - time.monotonic())

    core: Any = SimpleNamespace(
        check_open=lambda: None,
        engine=SimpleNamespace(metadata=SimpleNamespace(refresh=refresh)),
        accumulator=SimpleNamespace(topics={"orders": SimpleNamespace(queues=[None, None])}),
    )
    with pytest.raises(InvalidArgumentError, match="partition 9 does not exist"):
        asyncio.run(ProducerCore.recheck_partition(core, "orders", 9, max_block_s))
    assert len(left_s) == looks
    assert not max_block_s or min(left_s) > 0
