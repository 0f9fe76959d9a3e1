"""Common fixtures of the scenarios of local clusters."""

from __future__ import annotations

import pytest

from headrace_tools.local import directory


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Default to one controller and one broker: each node start takes long, even if the node is only a stand-in."""
    monkeypatch.setattr(directory, "DEFAULT_BROKERS", 1)
    monkeypatch.setattr(directory, "DEFAULT_CONTROLLERS", 1)
    monkeypatch.setattr(directory, "DEFAULT_COORDINATORS", 0)
