"""Assignors: pure functions from members and topics to an assignment (``spec`` defines the types).

| name | even | moves | racks |
|---|---|---|---|
| ``uniform`` | in every topic and in all | few | no |
| ``range`` | in every class of topics that can be joined | few | no |
| ``sticky`` | in all | the fewest | yes |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import range_, sticky, uniform
from .spec import Assignment, Assignor, Members, MemberSpec, Part, Parts, Topics, TopicSpec

#: Assignors by name; the first assignor is the default (group.consumer.assignors).
ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {"uniform": uniform.assign, "range": range_.assign, "sticky": sticky.assign}
)

__all__ = [
    "ASSIGNORS", "Assignment", "Assignor", "MemberSpec", "Members", "Part", "Parts", "TopicSpec", "Topics",
]  # fmt: skip
