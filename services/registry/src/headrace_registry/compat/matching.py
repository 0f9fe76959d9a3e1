"""The largest set of pairs in which each element of two sides appears at most once (Hopcroft and Karp, 1973)."""

from __future__ import annotations

from collections.abc import Sequence


def largest_matching(partners: Sequence[Sequence[int]]) -> int:
    """The number of pairs in a largest matching. ``partners[i]`` has the elements of the right side with which element
    i of the left side may be paired.

    The time is proportional to the number of allowed pairs times the square root of the number of elements.
    """
    right_of: dict[int, int] = {}  # left element -> its partner
    left_of: dict[int, int] = {}  # right element -> its partner
    while True:
        layers = _layers(partners, right_of, left_of)
        if not layers:
            return len(right_of)
        for left in range(len(partners)):
            if left not in right_of:
                _augment(left, partners, layers, right_of, left_of)


def _layers(partners: Sequence[Sequence[int]], right_of: dict[int, int], left_of: dict[int, int]) -> dict[int, int]:
    """The distance of each element of the left side from the free elements of the left side. The result is empty if no
    free element of the right side can be reached."""
    layers = {left: 0 for left in range(len(partners)) if left not in right_of}
    edge = list(layers)
    reached = False
    while edge and not reached:
        following = []
        for left in edge:
            for right in partners[left]:
                owner = left_of.get(right)
                if owner is None:
                    reached = True
                elif owner not in layers:
                    layers[owner] = layers[left] + 1
                    following.append(owner)
        edge = following
    return layers if reached else {}


def _augment(
    start: int,
    partners: Sequence[Sequence[int]],
    layers: dict[int, int],
    right_of: dict[int, int],
    left_of: dict[int, int],
) -> None:
    """Pair ``start`` with an element of the right side along a shortest augmenting path, if the layers have one."""
    path = [(start, iter(partners[start]))]
    taken: list[int] = []
    while path:
        left, rest = path[-1]
        for right in rest:
            owner = left_of.get(right)
            if owner is None:
                taken.append(right)
                for (changed, _), partner in zip(path, taken, strict=True):
                    right_of[changed], left_of[partner] = partner, changed
                return
            if layers.get(owner) == layers[left] + 1:
                taken.append(right)
                path.append((owner, iter(partners[owner])))
                break
        else:
            path.pop()
            layers.pop(left)  # this element leads to no free partner in this round
            if taken:
                taken.pop()
