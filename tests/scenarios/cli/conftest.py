"""What the scenarios of local clusters share."""

from __future__ import annotations

import pytest

from headrace_tools.local import directory


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller and a broker when a test does not say otherwise: stand-ins are cheap, and their starts are not."""
    monkeypatch.setattr(directory, "DEFAULT_BROKERS", 1)
    monkeypatch.setattr(directory, "DEFAULT_CONTROLLERS", 1)
    monkeypatch.setattr(directory, "DEFAULT_COORDINATORS", 0)
