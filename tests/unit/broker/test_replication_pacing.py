"""A throttle allows exactly its rate over any period of time."""

from __future__ import annotations

import random

from headrace_broker.partition.pacing import BURST_MS, UNLIMITED, Pacer


def test_no_throttle_holds_nobody_up():
    pacer = Pacer(UNLIMITED, 0)
    for _ in range(1000):
        assert pacer.ready_in_ms(0) == 0.0
        pacer.take(1 << 30, 0)


def test_what_was_overdrawn_is_waited_for():
    pacer = Pacer(1000, 0)
    pacer.take(1000, 0)  # the burst of a second
    wait_ms = pacer.ready_in_ms(0)
    assert wait_ms == 1
    assert pacer.ready_in_ms(wait_ms) == 0.0
    pacer.take(5001, wait_ms)
    assert pacer.ready_in_ms(wait_ms) == 5001
    assert pacer.ready_in_ms(wait_ms + 5001) == 0.0


def test_a_rest_saves_no_more_than_a_burst():
    pacer = Pacer(1000, 0)
    pacer.take(1000, 3_600_000)
    assert pacer.ready_in_ms(3_600_000) != 0.0


def test_a_rate_of_nothing_lets_nothing_through_until_it_is_raised():
    pacer = Pacer(0, 0)
    assert pacer.ready_in_ms(10_000) is None
    pacer.set_rate(1000, 10_000)
    assert pacer.ready_in_ms(10_000) == 1
    assert pacer.ready_in_ms(10_001) == 0.0


def test_a_higher_rate_shortens_the_wait_for_a_debt():
    pacer = Pacer(1000, 0)
    pacer.take(11_000, 0)
    before = pacer.ready_in_ms(0)
    pacer.set_rate(10_000, 0)
    after = pacer.ready_in_ms(0)
    assert before is not None
    assert after is not None
    assert after < before / 9


def test_over_any_time_it_lets_through_its_rate_and_one_burst():
    for seed in range(50):
        rng = random.Random(seed)
        rate, now_ms, sent, most = rng.randrange(1, 1_000_000), 0.0, 0, 0
        pacer = Pacer(rate, 0)
        while now_ms < 60_000:
            wait_ms = pacer.ready_in_ms(now_ms)
            assert wait_ms is not None
            if wait_ms == 0.0:
                size = rng.randrange(1, rate + 2)
                pacer.take(size, now_ms)
                sent, most = sent + size, max(most, size)
            now_ms += wait_ms or rng.random() * 10
        limit = rate * (now_ms + BURST_MS) / 1000 + most
        assert sent <= limit, f"seed {seed}"
        assert sent >= rate * now_ms / 1000 * 0.9, f"seed {seed}: {sent} bytes, {rate} bytes/s"
