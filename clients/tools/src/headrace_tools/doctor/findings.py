"""The type of findings, the list of rules, and common wording. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace_core.plurals import counted

from .facts import Facts

_NAMED_MAX = 6


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """``rule``: the stable name of the rule, for scripts. ``where``: the nodes, partitions or groups concerned.
    ``cure``: what the operator should do."""

    rule: str
    severity: Severity
    what: str
    where: str
    cure: str


Rule = Callable[[Facts], Iterable[Finding]]
#: All rules by name, in the order in which the modules define them.
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add


# -- words ------------------------------------------------------------------------------------------------------------


def brokers_named(ids: Sequence[int]) -> str:
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}" if ids else "the missing replicas"


def count(names: Sequence[str]) -> str:
    return counted(len(names), "partition")


def some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
