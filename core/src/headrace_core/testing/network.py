"""A simulated network that loses, duplicates, delays and reorders messages. Links can be cut in one direction or in
both directions, and old messages can be delivered again much later.

The network carries messages of any type between addresses. A link delivers messages in order, as a stream does, except
where a fault reorders messages; a cut of a link loses messages in flight. ``on_fault(kind)`` is called for each fault,
so that a simulation can prove that faults occurred.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .scheduler import Scheduler

Address = TypeVar("Address", bound=Hashable)
Message = TypeVar("Message")

#: Number of past messages that the network keeps, so that ``replay`` can deliver the messages a second time.
REMEMBERED = 200


@dataclass(frozen=True, slots=True)
class Quality:
    """Fault rates of a network: probabilities from 0 to 1, times in ms."""

    delay_min_ms: float = 0.2
    delay_max_ms: float = 1.0
    loss: float = 0.0
    doubling: float = 0.0
    reordering: float = 0.0  #: Probability that a message is delivered out of its link's order.
    slowness: float = 0.0  #: Probability that a message takes up to ``slow_ms`` longer.
    slow_ms: float = 0.0


GOOD = Quality()


class SimulatedNetwork(Generic[Address, Message]):
    """A network with faults, as the module's docstring describes. ``deliver(sender, to, message)`` is called when a
    message arrives."""

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        deliver: Callable[[Address, Address, Message], object],
        on_fault: Callable[[str], object] = lambda kind: None,
    ) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._deliver = deliver
        self._on_fault = on_fault
        self.quality = GOOD
        self._cuts: set[tuple[Address, Address]] = set()
        #: Time at which each link's last message arrives; the link's next message arrives no earlier.
        self._last_ms: dict[tuple[Address, Address], float] = {}
        #: For each link: a number that grows with each new connection. A message contains the number of its connection,
        #: so that a cut loses messages in flight.
        self._lives: dict[tuple[Address, Address], int] = {}
        self._past: deque[tuple[Address, Address, Message]] = deque(maxlen=REMEMBERED)

    def is_cut(self, sender: Address, to: Address) -> bool:
        return (sender, to) in self._cuts

    @property
    def is_whole(self) -> bool:
        return not self._cuts

    def cut(self, links: Iterable[tuple[Address, Address]]) -> None:
        """Stop all messages from the first to the second address of each pair."""
        for link in links:
            self._cuts.add(link)
            self.reset(*link)

    def mend(self, links: Iterable[tuple[Address, Address]] | None = None) -> None:
        """Restore the given links; without an argument, all links."""
        if links is None:
            self._cuts.clear()
        else:
            self._cuts.difference_update(links)

    def reset(self, sender: Address, to: Address) -> None:
        """Break a link's connection: messages in flight are lost, and the next message uses a new connection."""
        self._lives[sender, to] = self._lives.get((sender, to), 0) + 1

    def send(self, sender: Address, to: Address, message: Message) -> None:
        link = (sender, to)
        if link in self._cuts:
            return
        rng, quality = self._rng, self.quality
        if quality is not GOOD:
            if quality.loss and rng.random() < quality.loss:
                self._on_fault("drop")
                return
            if quality.doubling and rng.random() < quality.doubling:
                self._on_fault("duplicate")
                self._plan(link, message, keeps_order=False)
        self._past.append((sender, to, message))
        self._plan(link, message, keeps_order=True)

    def replay(self, count: int) -> int:
        """Deliver randomly chosen old messages again; returns the number of messages."""
        chosen = [self._rng.randrange(len(self._past)) for _ in range(count)] if self._past else []
        for number in chosen:
            sender, to, message = self._past[number]
            self._on_fault("stale_replay")
            self._scheduler.after(self._rng.uniform(0.0, 50.0), self._deliver, sender, to, message)
        return len(chosen)

    def _plan(self, link: tuple[Address, Address], message: Message, *, keeps_order: bool) -> None:
        rng, quality = self._rng, self.quality
        low = quality.delay_min_ms
        at_ms = self._scheduler.now_ms + low + rng.random() * (quality.delay_max_ms - low)
        if quality.slowness and rng.random() < quality.slowness:
            at_ms += rng.random() * quality.slow_ms
            self._on_fault("delay")
        before_ms = self._last_ms.get(link, 0.0)
        if keeps_order and quality.reordering and rng.random() < quality.reordering:
            self._on_fault("reorder")
            at_ms += rng.random() * 5 * quality.delay_max_ms
            keeps_order = False
        if keeps_order:
            if at_ms < before_ms:
                at_ms = before_ms
            self._last_ms[link] = at_ms
        self._scheduler.at(at_ms, self._arrive, link, self._lives.get(link, 0), message)

    def _arrive(self, link: tuple[Address, Address], life: int, message: Message) -> None:
        if life == self._lives.get(link, 0):
            self._deliver(*link, message)
