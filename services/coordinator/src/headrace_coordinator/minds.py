"""What the mind of a shard is made of: groups and offsets, with this node's settings."""

from __future__ import annotations

from collections.abc import Callable

from .settings import CoordinatorSettings
from .shard_logic import ShardLogic
from .shard_state import ShardState


def minds(settings: CoordinatorSettings) -> Callable[[], ShardLogic]:
    """Makes empty ones."""
    from .group.groups import Groups

    return lambda: ShardState(Groups(settings.groups, awaits_proof=True), settings.offsets)
