"""What every test shares: one seed for a run's random choices, and the markers' means.

`HEADRACE_TEST_SEED=N` repeats a run's random choices; without it the seed is new each time. It is in the header of the
run, and each test that used it prints its own when it fails.
"""

from __future__ import annotations

import os
import random
import signal
import zlib

import pytest
from hypothesis import HealthCheck, settings

# Machines with two busy cores: time limits per example would measure the neighbours.
settings.register_profile("headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "headrace"))

_SEED = "HEADRACE_TEST_SEED"

# A shell starts what runs in the background (`make test &`, nohup) with SIGINT ignored, and processes hand that on to
# their children: without this no Ctrl-C of a test would ever reach anybody.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # Set in the process that starts the workers of pytest-xdist, and inherited by them.
    seed = int(os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(2**31))))
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = seed


def pytest_report_header() -> str:
    return f"random choices: {_SEED}={os.environ[_SEED]}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, derived from the run's; printed, so that a failure's report shows it."""
    own = zlib.crc32(f"{os.environ[_SEED]}:{request.node.nodeid}".encode())
    print(f"seed of this test: {own} ({_SEED}={os.environ[_SEED]})")
    return own


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers from this test's seed."""
    return random.Random(seed)
