"""Shared parts of the checks for the three languages: differences, incompatibilities, and the work of one check."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from headrace_core.errors import HeadraceError

#: Maximum number of steps of one comparison of two schemas: about as many as Python takes in a second. A pair of types
#: takes at least one step.
STEPS_MAX = 250_000

#: Number of names or values that a comparison looks at in the time of one step.
LOOKS_PER_STEP = 16

#: Maximum number of incompatibilities between two schemas that one check reports.
REPORTED_MAX = 100

#: Maximum number of characters of an incompatibility's path, and of its detail.
TEXT_MAX = 2000


class ComparisonTooLargeError(HeadraceError):
    """A check of compatibility takes too many steps; split the schema, or set the level NONE."""

    code = "COMPARISON_TOO_LARGE"


class Difference(NamedTuple):
    """A difference between the schemas of a reader and a writer; its kind says whether the reader can read the data.

    ``detail`` is Avro's ``additionalInfo``, and None in the other languages.
    """

    kind: str
    path: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """A reason for which a reader cannot read all data of a writer.

    ``kind`` is Confluent's ``errorType``, ``path`` the place in the schema, ``reason`` Confluent's ``description``.
    ``detail`` is the ``additionalInfo`` of Avro, and None in the other languages. ``earlier`` is the index of the
    earlier schema in the list that the check received.
    """

    kind: str
    path: str
    reason: str
    detail: str | None = None
    earlier: int = -1

    def __str__(self) -> str:
        """The incompatibility as Confluent's registry shows it in its answers."""
        if self.kind == DIFFERENT_TYPE:
            return self.reason
        if self.detail is not None:
            return f"{{errorType:'{self.kind}', description:'{self.reason}', additionalInfo:'{self.detail}'}}"
        return f'{{errorType:"{self.kind}", description:"{self.reason}"}}'


#: The kind of the incompatibility between schemas of different types, such as Avro and Protobuf. Confluent's registry
#: reports this incompatibility as a sentence, without a kind.
DIFFERENT_TYPE = "SCHEMA_TYPE_CHANGED"

_T = TypeVar("_T")
#: A recursive computation as a generator, which ``run`` runs: it yields further generators and receives their results.
Steps = Generator[Any, Any, _T]


def run(steps: Steps[_T], steps_max: int = STEPS_MAX) -> _T:
    """Run a recursive computation without recursive Python calls, so that a chain of types may have any length.

    ``steps`` is a generator: it yields generators like itself, and receives what each of them returns. It yields a
    number for work that takes the time of as many steps. Raise ComparisonTooLargeError after ``steps_max`` steps.
    """
    stack: list[Steps[Any]] = [steps]
    result: Any = None
    count = 0
    while stack:
        try:
            below = stack[-1].send(result)
        except StopIteration as end:
            stack.pop()
            result = end.value
        else:
            result = None
            if isinstance(below, int):
                count += below
            else:
                stack.append(below)
                count += 1
            if count > steps_max:
                raise ComparisonTooLargeError(
                    f"the check of compatibility takes more than {steps_max} steps; split the schema, or set the "
                    "level of the subject to NONE"
                )
    return result  # type: ignore[no-any-return]
