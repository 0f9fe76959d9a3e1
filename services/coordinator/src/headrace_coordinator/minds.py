"""What the mind of a shard is made of: groups and offsets, with this node's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .settings import CoordinatorSettings
from .shard_logic import ShardLogic
from .shard_state import ShardState


def minds(values: Mapping[str, Any], settings: CoordinatorSettings) -> Callable[[], ShardLogic]:
    """Makes empty ones. ``values``: the node's configuration by name."""
    from .group.groups import Groups

    return lambda: ShardState(Groups(), settings.offsets)
