"""Topics, groups and records of the pipeline ``scaling``. A scene has its own topic, and a group of the same name."""

from __future__ import annotations

import json
import random

from ..lags import group_of

PIPELINE = "scaling"
KEYS = 300


def topic_of(scene: str) -> str:
    """The topic of a scene."""
    return f"{PIPELINE}.{scene}"


def group(scene: str) -> str:
    """The consumer group of a scene."""
    return group_of(PIPELINE, scene)


def traffic(count: int, seed: int) -> list[tuple[bytes, bytes]]:
    """``count`` records as (key, value); the same seed gives the same records. ``n`` counts the records of a key from
    0."""
    rng = random.Random(f"scaling {seed}")
    weights = [1 / (1 + number / 10) for number in range(KEYS)]
    next_n: dict[int, int] = {}
    records = []
    for number in rng.choices(range(KEYS), weights, k=count):
        n = next_n.get(number, 0)
        next_n[number] = n + 1
        records.append((b"key-%03d" % number, json.dumps({"n": n}).encode()))
    return records
