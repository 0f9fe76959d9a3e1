from collections.abc import Mapping

class Plan:
    def __init__(self, steps: Mapping[int, tuple[str, int, bool, int, Plan | None, int]]) -> None: ...

class Count:
    wrong: str
    name: str
    number: int
    def __init__(self, data: bytes, plan: Plan | None, most: tuple[int, ...], fields: int) -> None: ...
