"""The four rules, which recognize the payments of a thief among the payments of one customer.

``judge`` is a pure function of a customer's history and the next payment. The thresholds are constants, each with its
reason. A lower threshold finds more fraud, and disturbs more honest customers.

A payment that looks like fraud does not change what counts as normal for the customer. The history ignores the amount
and the place of this payment.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .schema import AMOUNT, TESTING, TRAVEL, VELOCITY, Account, Payment, Place

MINUTE_MS = 60_000

#: Upper limit of small payments. Thieves test a stolen card with amounts that the customer overlooks. The limit is
#: below the price of a coffee.
SMALL_CENTS = 200
#: Card testing: a customer's last TESTING_PAYMENTS small payments are all within TESTING_MS. A customer who pays at
#: parking meters seldom makes so many small payments.
TESTING_PAYMENTS = 4
TESTING_MS = 20 * MINUTE_MS
#: Velocity: a customer's last VELOCITY_PAYMENTS payments that are not small are all within VELOCITY_MS. A customer in a
#: shopping street seldom makes so many payments.
VELOCITY_PAYMENTS = 6
VELOCITY_MS = 10 * MINUTE_MS
#: Impossible travel: the customer moves faster than an airliner (900 km/h) with a tail wind.
TRAVEL_KMH = 1_000.0
#: Shorter distances give no alert: the two terminals may be in the same city, or one may have a wrong position.
TRAVEL_KM = 100.0
#: The amounts of one customer are about log-normal. One honest payment in 30,000 is more than four standard deviations
#: above the mean.
AMOUNT_DEVIATIONS = 4.0
#: The prior: the usual amount in the bank's own record counts like PRIOR_PAYMENTS payments with the standard deviation
#: PRIOR_DEVIATION. The prior keeps the rule sensible for customers with a short or a very regular history.
PRIOR_PAYMENTS = 5
PRIOR_DEVIATION = 0.5

EARTH_KM = 6_371.0


class History(NamedTuple):
    """The history of a customer, as the job stores it; detector.HISTORIES has the column types.

    ``amounts`` (their number), ``mean`` and ``squares`` (the sum of squared deviations) describe the logarithms of the
    customer's amounts, including the prior. The last place is None until the first payment at a terminal. ``recent_ms``
    and ``small_ms`` are the times of the last payments, as many as the rules for velocity and card testing need.
    ``recent_ms``, ``small_ms`` and the place come from the payments that were received last, so the history soon
    forgets a payment with a wrong clock.
    """

    amounts: int
    mean: float
    squares: float
    latitude: float | None = None
    longitude: float | None = None
    placed_ms: int | None = None
    recent_ms: tuple[int, ...] = ()
    small_ms: tuple[int, ...] = ()


def first_history(account: Account) -> History:
    """The history of a customer without payments."""
    return History(PRIOR_PAYMENTS, math.log(account.usual_cents), PRIOR_PAYMENTS * PRIOR_DEVIATION**2)


def judge(history: History, payment: Payment) -> tuple[History, list[tuple[str, str]]]:
    """The history after ``payment``, and each kind of fraud that the payment looks like, with the reason."""
    amounts, mean, squares, latitude, longitude, placed_ms, recent_ms, small_ms = history
    found: list[tuple[str, str]] = []
    now = payment.time_ms

    if payment.cents < SMALL_CENTS:
        small_ms = (*small_ms, now)[-TESTING_PAYMENTS:]
        if len(small_ms) == TESTING_PAYMENTS and max(small_ms) - min(small_ms) < TESTING_MS:
            found.append((TESTING, f"{TESTING_PAYMENTS} payments or more below {SMALL_CENTS} cents in 20 minutes"))
    else:
        recent_ms = (*recent_ms, now)[-VELOCITY_PAYMENTS:]
        if len(recent_ms) == VELOCITY_PAYMENTS and max(recent_ms) - min(recent_ms) < VELOCITY_MS:
            found.append((VELOCITY, f"{VELOCITY_PAYMENTS} payments or more in 10 minutes"))
        amount = math.log(payment.cents)
        deviation = math.sqrt(squares / amounts)
        if amount > mean + AMOUNT_DEVIATIONS * deviation:
            times = math.exp(amount - mean)
            found.append((AMOUNT, f"{payment.cents} cents are {times:.1f} times the usual amount"))
        else:
            amounts += 1
            before, mean = mean, mean + (amount - mean) / amounts
            squares += (amount - before) * (amount - mean)

    if payment.place is not None:
        speed = None
        if placed_ms is not None and latitude is not None and longitude is not None:
            speed = _too_fast((latitude, longitude), payment.place, now - placed_ms)
        if speed is not None:
            found.append((TRAVEL, speed))
        else:
            (latitude, longitude), placed_ms = payment.place, now
    return History(amounts, mean, squares, latitude, longitude, placed_ms, recent_ms, small_ms), found


def _too_fast(one: Place, other: Place, passed_ms: int) -> str | None:
    """The reason if a customer cannot travel from one place to the other in the given time. A negative time gives no
    alert: the payment is late, or the payment before it had a wrong clock."""
    distance = kilometres(one, other)
    hours = passed_ms / 3_600_000
    if passed_ms < 0 or distance <= TRAVEL_KM or distance <= TRAVEL_KMH * hours:
        return None
    return f"{distance:.0f} km from the place of {passed_ms // MINUTE_MS} minutes before"


def kilometres(one: Place, other: Place) -> float:
    """The great-circle distance of two places, by the haversine formula."""
    (north, east), (north2, east2) = (tuple(map(math.radians, place)) for place in (one, other))
    half = math.sin((north2 - north) / 2) ** 2
    half += math.cos(north) * math.cos(north2) * math.sin((east2 - east) / 2) ** 2
    return 2 * EARTH_KM * math.asin(math.sqrt(min(1.0, half)))
