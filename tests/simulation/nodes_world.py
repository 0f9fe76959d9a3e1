"""The common part of the brokers' half and the groups' part of the simulator: time, network links, the cluster's rules,
and the run of a schedule.

The real ``ClusterCore`` stands for the controllers; the other half (``sim_world``) simulates what happens among them.
"""

from __future__ import annotations

import contextlib
import functools
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_core.metadata import MetadataImage
from headrace_core.rpc.outage import Backoff
from headrace_core.testing.network import Quality
from headrace_core.testing.scheduler import Scheduler
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_plan import Fault
from tests.simulation.sim_story import Story


class NodesWorld(ABC):
    """One schedule of nodes that run the product's code. ``name``: the name of the world's random numbers."""

    EVENTS_MAX: ClassVar[int]
    #: Longest delay of metadata while they are late.
    METADATA_LATE_MS: ClassVar[float]
    hosts: Sequence[Any]
    #: Every committed step of the metadata.
    steps: list[Any]

    def __init__(self, plan: Any, name: str, settings: ClusterSettings, *, with_story: bool) -> None:
        self.scheduler = Scheduler()
        self.rng = random.Random(f"{plan.seed} {name}")
        self.story = Story(with_story)
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.quality: Quality = plan.quality
        #: (from, to): nothing gets through.
        self.cuts: set[tuple[Any, Any]] = set()
        self.loops: list[Any] = []
        self.late_metadata_until_ms = 0.0
        #: For a mutant: an exception of the product ends only its node; the first exception is the failure of the run.
        self.goes_past_exceptions = False
        self.exception: BaseException | None = None
        #: The request whose decision is being accepted.
        self.deciding: Any = None
        self.core = ClusterCore(settings, new_id=lambda: self.rng.randbytes(16))
        self.steps = []
        self._metadata_ms: tuple[float, float] = plan.metadata_ms
        self._log_end = 0
        self._last_ms: dict[Any, float] = {}
        self._failure: BaseException | None = None

    # -- telling -----------------------------------------------------------------------------------------------------

    def tell(self, who: object, what: str) -> None:
        if self.story.is_wanted:
            self.story.tell(self.scheduler.now_ms, str(who), what)

    def count(self, category: str, name: str) -> None:
        self.coverage[category, name] += 1

    def fault_happened(self, fault: Fault, what: str) -> None:
        self.coverage["fault", fault.kind] += 1
        self.tell("fault", f"#{fault.number} {fault.kind}: {what}")

    def stumbled(self, host: Any, error: BaseException) -> None:
        """The product raised an exception in a place where it must not. The process ends. If exceptions are tolerated,
        the process starts again, and the checks find the consequences of the exception."""
        if self.goes_past_exceptions and host in self.nodes and not isinstance(error, Violation):
            self.exception = self.exception or error
            self.tell(host, f"ends of {error!r}")
            self.scheduler.after(0.0, self.process_died, host, host.life)
        elif self._failure is None:
            self.tell(host, f"stumbles: {error!r}")
            self._failure = error

    @property
    def nodes(self) -> Sequence[Any]:
        """The simulated hosts that run the product's nodes; these hosts receive the metadata."""
        return self.hosts

    @abstractmethod
    def process_died(self, host: Any, life: int) -> None:
        """End the process of this host's current life, and start it again."""

    # -- the network -------------------------------------------------------------------------------------------------

    def message_delay_ms(self, link: tuple[Any, Any]) -> float | None:
        """The duration of a message, or None if the message is lost."""
        if link in self.cuts:
            return None
        quality, rng = self.quality, self.rng
        delay_ms = rng.uniform(quality.delay_min_ms, quality.delay_max_ms)
        if quality.loss and rng.random() < quality.loss:
            return None
        if quality.slowness and rng.random() < quality.slowness:
            delay_ms += rng.random() * quality.slow_ms
        return delay_ms

    def in_order(self, link: Any, delay_ms: float, action: Callable[[], None]) -> None:
        at_ms = max(self.scheduler.now_ms + delay_ms, self._last_ms.get(link, 0.0))
        self._last_ms[link] = at_ms
        self.scheduler.at(at_ms, action)

    # -- the controllers ---------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self.core.committed

    def decide(self, request: Any) -> Any:
        """The reply of the controllers, or the error with which they refuse the request."""
        decision = self.core.decide(request, self.scheduler.now_ms)
        self.deciding = request
        self._accept(decision)
        self.deciding = None
        return decision.reply if decision.failure is None else decision.failure

    @abstractmethod
    def _accept(self, decision: Any) -> None:
        """Commit the records of a decision, and send each step of the metadata to every host."""

    def _publish(self, host: Any) -> None:
        index = len(self.steps)
        delay_ms = self.rng.uniform(*self._metadata_ms)
        if self.scheduler.now_ms < self.late_metadata_until_ms and self.rng.random() < 0.5:
            delay_ms += self.rng.uniform(50.0, self.METADATA_LATE_MS)
        self.in_order(("metadata", host.number), delay_ms, functools.partial(self._metadata_arrives, host, index))

    @abstractmethod
    def _metadata_arrives(self, host: Any, index: int) -> None:
        """The host may see the first ``index`` steps of the metadata."""

    def _upkeep(self) -> None:
        for _ in range(8):
            decision = self.core.upkeep(self.scheduler.now_ms)
            if not decision.records:
                break
            self._accept(decision)
        self.scheduler.after(25.0, self._upkeep)

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the schedule, then the recovery, then the final check. Raises Violation, or the exception of the
        product."""
        with self._patched():
            try:
                self._run()
                if self.exception is not None:
                    raise self.exception
            finally:
                self._end()

    def _end(self) -> None:
        for loop in self.loops:
            loop.bury()

    @abstractmethod
    def _run(self) -> None: ...

    @abstractmethod
    def _patches(self) -> list[tuple[Any, str, Any]]:
        """Patches that replace a value or a class of the product by one of the simulation: (module or class, name,
        replacement)."""

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        patches = self._patches()
        saved = [(where, name, vars(where)[name]) for where, name, _ in patches]
        try:
            for where, name, instead in patches:
                setattr(where, name, instead)
            yield
        finally:
            for where, name, before in saved:
                setattr(where, name, before)

    def _backoff(self, **given: Any) -> Backoff:
        return Backoff(**given, rng=random.Random(self.rng.random()))

    def pass_until(self, at_ms: float) -> None:
        """Run events until a time; too many events before that time are a violation of liveness."""
        scheduler = self.scheduler
        while scheduler.run_one(at_ms):
            if self._failure is not None:
                raise self._failure
            if scheduler.events > self.EVENTS_MAX:
                raise Violation("liveness", f"{self.EVENTS_MAX} events, and only {scheduler.now_ms:.0f} ms have passed")
