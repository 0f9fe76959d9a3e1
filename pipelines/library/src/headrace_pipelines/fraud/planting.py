"""Payments of a bank's customers with planted fraud, from a seed. The same seed gives the same events and truth.

Honest customers are not regular. Honest customers travel, shop in many shops, park the car, and buy furniture. Honest
customers also pay with a closed account, and use terminals whose position or clock is wrong. Some thieves behave like
honest customers. Because honest customers and thieves may look alike, no rule finds every fraud without a false alarm.

The clock of the payments runs faster than the clock on the wall: at 2,000 payments per second, four hours of payments
pass in one second.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .rules import MINUTE_MS, kilometres
from .schema import AMOUNT, TESTING, TRAVEL, VELOCITY, Account, Payment, Place

#: The time of the first payment: 1 January 2026, 00:00 UTC.
START_MS = 1_767_225_600_000
#: Each customer pays three times a day, on average.
PAYMENTS_A_DAY = 3
DAY_MS = 86_400_000
CUSTOMERS = 4_000
#: Average number of payments of each customer in a short run, which has fewer customers than a long run.
PAYMENTS_OF_A_CUSTOMER = 30
#: After every NEW_CUSTOMER_EVERY payments, a new customer opens an account, and the oldest customer stops paying.
NEW_CUSTOMER_EVERY = 400
#: The account of a customer who stopped paying is closed after CLOSED_AFTER payments of all customers (or a quarter of
#: a short run). The same number of payments later, the share PAYS_CLOSED of the customers with a closed account pay
#: once with it.
CLOSED_AFTER = 20_000
PAYS_CLOSED = 0.2
#: The share LATE_ACCOUNTS of the accounts arrives late: LATE_BY payments after the first payment of the customer.
LATE_ACCOUNTS = 0.2
LATE_BY = 1_000

#: Maps each kind of fraud, and of unusual honest behaviour, to a number N: a case of the kind begins about once in N
#: payments.
FRAUDS = {VELOCITY: 1_500, TRAVEL: 1_500, TESTING: 1_500, AMOUNT: 1_000}
TRIP, SHOPPING, PARKING, PURCHASE, WRONG_PLACE, WRONG_CLOCK, NO_ACCOUNT, NO_PAYMENT = range(8)
HONEST = {TRIP: 400, SHOPPING: 700, PARKING: 400, PURCHASE: 400, WRONG_PLACE: 4_000, WRONG_CLOCK: 2_000}
HONEST |= {NO_ACCOUNT: 4_000, NO_PAYMENT: 10_000}
#: Errors of terminals' clocks, in days. A payment whose clock is wrong by fifty years becomes a dead letter.
WRONG_BY_DAYS = (-50 * 365, -365, -0.1, 0.1, 365, 50 * 365)

CITIES = (
    (52.52, 13.40), (48.86, 2.35), (51.51, -0.13), (40.42, -3.70), (41.90, 12.50), (48.21, 16.37), (52.23, 21.01),
    (59.33, 18.07), (38.72, -9.14), (37.98, 23.73), (41.01, 28.98), (53.35, -6.26), (40.71, -74.01), (41.88, -87.63),
    (34.05, -118.24), (19.43, -99.13), (-23.55, -46.63), (30.04, 31.24), (25.20, 55.27), (28.61, 77.21),
    (1.35, 103.82), (35.68, 139.69), (-33.87, 151.21),
)  # fmt: skip


class Fraud(NamedTuple):
    """The planted fraud to which a payment belongs: its kind and its number. A fraud may have several payments."""

    kind: str
    number: int


class Event(NamedTuple):
    """A record to send. ``content``: a payment, an account, text that is not a payment, or None if the account
    closes."""

    customer: str
    content: Payment | Account | bytes | None
    fraud: Fraud | None = None

    @property
    def is_payment(self) -> bool:
        return isinstance(self.content, Payment | bytes)


@dataclass(slots=True)
class Customer:
    name: str
    home: Place
    usual: float  #: mean of the logarithm of the amounts in cents
    city: Place = field(init=False)  #: where the customer is, or travels to
    arrives_ms: int = 0  #: no payments before

    def __post_init__(self) -> None:
        self.city = self.home


def events(seed: int, payments: int) -> Iterator[Event]:
    """Yield ``payments`` payments, and the accounts of their customers. The payments are in the order of their times,
    except for payments at terminals with a wrong clock."""
    yield from _Bank(seed, payments).events()


class _Bank:
    def __init__(self, seed: int, payments: int) -> None:
        self._random = random.Random(seed)
        self._payments, self._closed_after = payments, min(CLOSED_AFTER, payments // 4)
        self._size = max(20, min(CUSTOMERS, payments // PAYMENTS_OF_A_CUSTOMER))
        self._step_ms = DAY_MS / PAYMENTS_A_DAY / self._size
        self._now = float(START_MS)
        self._later: list[tuple[int, int, Event]] = []  # a heap of later events, earliest first
        self._order, self._names = itertools.count(), itertools.count()
        self._numbers, self._frauds = itertools.count(), itertools.count()
        self._customers: deque[Customer] = deque()
        self._rates: list[tuple[float, str | int]] = [(1 / every, kind) for kind, every in FRAUDS.items()]
        self._rates += [(1 / every, happening) for happening, every in HONEST.items()]

    def events(self) -> Iterator[Event]:
        for _ in range(self._size):
            yield from self._join(may_be_late=False)
        sent = 0
        while sent < self._payments:
            self._now += self._step_ms
            while self._later and self._later[0][0] <= self._now and sent < self._payments:
                event = heapq.heappop(self._later)[2]
                sent += event.is_payment
                yield event
            if sent == self._payments:
                return
            sent += 1
            yield self._one()
            if sent % NEW_CUSTOMER_EVERY == 0:
                yield from self._join(may_be_late=True)
                self._leave(self._customers.popleft())

    # -- customers

    def _join(self, *, may_be_late: bool) -> Iterator[Event]:
        draw = self._random
        city = draw.choice(CITIES)
        home = (city[0] + draw.gauss(0, 0.1), city[1] + draw.gauss(0, 0.1))
        customer = Customer(f"c{next(self._names):06}", home, math.log(3_000) + draw.gauss(0, 0.5))
        self._customers.append(customer)
        usual = round(math.exp(customer.usual + draw.gauss(0, 0.2)))
        account = Event(customer.name, Account(customer.name, usual))
        if may_be_late and draw.random() < LATE_ACCOUNTS:
            self._plan(account, LATE_BY * self._step_ms)
            return
        if draw.random() < 0.1:  # an older version, which compaction removes
            yield Event(customer.name, Account(customer.name, 1 + usual // 2))
        yield account

    def _leave(self, customer: Customer) -> None:
        in_ms = self._closed_after * self._step_ms
        self._plan(Event(customer.name, None), in_ms)
        if self._random.random() < PAYS_CLOSED:
            self._plan(Event(customer.name, self._payment(customer, 2 * in_ms)), 2 * in_ms)

    def _someone(self) -> Customer:
        while True:
            customer = self._customers[int(self._random.random() * len(self._customers))]
            if customer.arrives_ms <= self._now:
                return customer

    # -- payments

    def _plan(self, event: Event, in_ms: float) -> None:
        heapq.heappush(self._later, (int(self._now + in_ms), next(self._order), event))

    def _payment(
        self, customer: Customer, in_ms: float = 0, *, cents: int | None = None, place: Place | None = None
    ) -> Payment:
        """A payment at ``place`` (None: on the web), ``in_ms`` milliseconds after the current time of the payments'
        clock."""
        if cents is None:
            cents = max(1, round(math.exp(self._random.gauss(customer.usual, 0.5))))
        return Payment(next(self._numbers), customer.name, int(self._now + in_ms), cents, place)

    def _near(self, city: Place) -> Place:
        return round(city[0] + self._random.gauss(0, 0.05), 4), round(city[1] + self._random.gauss(0, 0.05), 4)

    def _one(self) -> Event:
        """The payment that is due now, which may begin a fraud, or unusual but honest behaviour."""
        draw = self._random
        customer = self._someone()
        kind = self._kind()
        if kind in FRAUDS:
            return self._fraud(str(kind), customer)
        if kind == NO_ACCOUNT:
            stranger = f"x{next(self._names):06}"
            return Event(stranger, Payment(next(self._numbers), stranger, int(self._now), 900, None))
        if kind == NO_PAYMENT:
            return Event(customer.name, b'{"payment": %d, "cust' % next(self._numbers))
        if kind == PURCHASE:
            cents = round(math.exp(draw.gauss(customer.usual, 0.3)) * draw.uniform(2, 6))
            return Event(customer.name, self._payment(customer, cents=cents))
        if kind == WRONG_PLACE:
            return Event(customer.name, self._payment(customer, place=self._near(draw.choice(CITIES))))
        if kind == WRONG_CLOCK:
            in_ms = draw.choice(WRONG_BY_DAYS) * DAY_MS
            return Event(customer.name, self._payment(customer, in_ms, place=self._near(customer.city)))
        if kind == SHOPPING:
            for number in range(draw.choice((2, 2, 3, 3, 4, 5))):
                place, in_ms = self._near(customer.city), (number + draw.random()) * 2 * MINUTE_MS
                self._plan(Event(customer.name, self._payment(customer, in_ms, place=place)), in_ms)
        elif kind == PARKING:
            for number in range(draw.choice((1, 1, 2, 2, 3, 3, 4, 5))):
                place, in_ms = self._near(customer.city), (number + draw.random()) * 5 * MINUTE_MS
                paid = self._payment(customer, in_ms, cents=draw.randint(50, 300), place=place)
                self._plan(Event(customer.name, paid), in_ms)
        elif kind == TRIP and customer.arrives_ms < self._now - DAY_MS:
            return self._trip(customer)
        is_web = draw.random() < 0.3
        return Event(customer.name, self._payment(customer, place=None if is_web else self._near(customer.city)))

    def _kind(self) -> str | int | None:
        chance = self._random.random()
        for rate, kind in self._rates:
            chance -= rate
            if chance < 0:
                return kind
        return None

    def _trip(self, customer: Customer) -> Event:
        """A customer pays a last time in a city, and then flies to another city. Some flights and transfers take less
        time than planned."""
        paid = self._payment(customer, place=self._near(customer.city))
        city = customer.home if customer.city != customer.home else self._random.choice(CITIES)
        hours = kilometres(customer.city, city) / self._random.uniform(700, 900) + self._random.uniform(0.5, 3)
        customer.city, customer.arrives_ms = city, int(self._now + hours * 60 * MINUTE_MS)
        return Event(customer.name, paid)

    # -- frauds

    def _fraud(self, kind: str, customer: Customer) -> Event:
        draw = self._random
        truth = Fraud(kind, next(self._frauds))
        if kind == AMOUNT:
            cents = round(math.exp(customer.usual) * draw.uniform(5, 40))
            return Event(customer.name, self._payment(customer, cents=cents), truth)
        if kind == TRAVEL:
            city = draw.choice([each for each in CITIES if kilometres(each, customer.city) > 300])
            place, in_ms = self._near(city), draw.uniform(5, 240) * MINUTE_MS
            self._plan(Event(customer.name, self._payment(customer, in_ms, place=place), truth), in_ms)
            return Event(customer.name, self._payment(customer, place=self._near(customer.city)))
        small = draw.randint(10, 230) if kind == TESTING else None
        number, minutes = draw.randint(5, 12), draw.uniform(0.5, 1.5)
        if kind == TESTING:
            number, minutes = draw.randint(3, 8), draw.uniform(1, 5)
        for each in range(1, number):
            in_ms = each * minutes * MINUTE_MS
            self._plan(Event(customer.name, self._payment(customer, in_ms, cents=small), truth), in_ms)
        return Event(customer.name, self._payment(customer, cents=small), truth)
