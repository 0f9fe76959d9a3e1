"""A mutant: the product with one guard removed, to prove that the simulator would notice the missing guard.

A mutant is a list of patches: (where, attribute, replacement). The patches apply during the ``with`` block of
``applied``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

_INHERITED = object()


class Patch(NamedTuple):
    where: Any
    attribute: str
    instead: Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """``breaks``: why the guard exists: a section of the Raft paper (T: of the thesis), a KIP, or a known bug of
    another system. ``owner``: the number of the issue that added the guard."""

    name: str
    breaks: str
    owner: int
    patches: tuple[Patch, ...]
    #: The part of a schedule in which the mutant runs: the controllers' half, the histories of brokers (sim_histories),
    #: the brokers' half, or the groups' part.
    part: str = "world"
    #: For the histories: the kind of cluster that is most likely to expose the mutant.
    profile: int | None = None
    #: For schedules of groups: the kinds of faults that are most likely to expose the mutant, which get more weight.
    #: For schedules of controllers: the only kinds of faults in the schedules of the mutant. For the brokers' half: how
    #: records are deleted in all schedules of the mutant (``broker_plan.UPKEEP``).
    faults: tuple[str, ...] = ()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        # A class may inherit the attribute; then nothing of its own is left behind.
        saved = [(patch, vars(patch.where).get(patch.attribute, _INHERITED)) for patch in self.patches]
        for patch in self.patches:
            getattr(patch.where, patch.attribute)
        try:
            for patch in self.patches:
                setattr(patch.where, patch.attribute, patch.instead)
            yield
        finally:
            for patch, before in reversed(saved):
                if before is _INHERITED:
                    delattr(patch.where, patch.attribute)
                else:
                    setattr(patch.where, patch.attribute, before)
