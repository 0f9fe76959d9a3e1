"""Every test with the parameter ``codec`` runs on the reference codec and on the compiled codec."""

from __future__ import annotations

from types import ModuleType

import pytest

from headrace_core.records import _compiled, _pure


@pytest.fixture(params=[_pure, _compiled], ids=["pure", "native"])
def codec(request: pytest.FixtureRequest) -> ModuleType:
    return request.param
