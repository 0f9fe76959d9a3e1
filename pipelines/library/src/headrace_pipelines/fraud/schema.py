"""The topics of the fraud pipeline, and what their records contain.

fraud.payments      one payment for each record, in JSON; the key is the customer
fraud.accounts      compacted: the newest version of each customer's account; a tombstone closes the account
fraud.alerts        one alert for each payment and kind of fraud
fraud.payments.dead-letters, fraud.accounts.dead-letters
                    records that are not a payment or an account, and payments without an account, with the reason
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PAYMENTS = "fraud.payments"
ACCOUNTS = "fraud.accounts"
ALERTS = "fraud.alerts"

#: The kinds of fraud, as named in alerts and in the list of planted frauds.
VELOCITY, TRAVEL, TESTING, AMOUNT = KINDS = ("velocity", "travel", "testing", "amount")

#: Maximum number of bytes of a payment or an account. A longer record is a mistake, and would take memory and time.
VALUE_BYTES_MAX = 16_384
#: Payments have times from 2020 to 2039. A payment with a wrong clock would distort its customer's history.
FIRST_MS, END_MS = 1_577_836_800_000, 2_208_988_800_000

#: Latitude and longitude in degrees.
Place = tuple[float, float]


class InvalidRecordError(ValueError):
    """A record is not a valid payment or account. The text of the error names the field and its fault."""


class Payment(NamedTuple):
    """A payment. ``place`` is the position of the terminal; None for a payment on the web."""

    payment: int
    customer: str
    time_ms: int
    cents: int
    place: Place | None

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()


class Account(NamedTuple):
    """A customer's account. ``usual_cents``: what the customer usually pays, by the bank's own records."""

    customer: str
    usual_cents: int

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()


class Alert(NamedTuple):
    """A payment that looks like a fraud of ``kind``. ``sent_ms``: the timestamp of the payment's record."""

    payment: int
    customer: str
    kind: str
    reason: str
    time_ms: int
    sent_ms: int

    def encoded(self) -> str:
        return json.dumps(self._asdict())


def payment_of(text: bytes | None) -> Payment:
    """The payment in a record's value. Raises InvalidRecordError."""
    found = _object(text)
    number = _whole(found, "payment", 0)
    customer = found.get("customer")
    if not isinstance(customer, str) or not customer:
        raise InvalidRecordError("customer: missing, empty, or not a string")
    time_ms = _whole(found, "time_ms", 0)
    if not FIRST_MS <= time_ms < END_MS:
        raise InvalidRecordError("time_ms: not in the years 2020 to 2039")
    return Payment(number, customer, time_ms, _whole(found, "cents", 1), _place(found.get("place")))


def account_of(text: bytes | None) -> Account:
    """The account in a record's value. Raises InvalidRecordError."""
    found = _object(text)
    customer = found.get("customer")
    if not isinstance(customer, str) or not customer:
        raise InvalidRecordError("customer: missing, empty, or not a string")
    return Account(customer, _whole(found, "usual_cents", 1))


def alert_of(text: bytes | str) -> Alert:
    """The alert in a record of ALERTS."""
    return Alert(**json.loads(text))


def check_size(text: bytes | None) -> None:
    """Raise InvalidRecordError for a value that is longer than VALUE_BYTES_MAX."""
    if text is not None and len(text) > VALUE_BYTES_MAX:
        raise InvalidRecordError(f"value: {len(text)} bytes, more than {VALUE_BYTES_MAX}")


def _object(text: bytes | None) -> dict[str, Any]:
    check_size(text)
    try:
        found = json.loads(text or b"")
    except (ValueError, RecursionError):
        raise InvalidRecordError("value: malformed JSON") from None
    if not isinstance(found, dict):
        raise InvalidRecordError("value: not a JSON object")
    return found


def _whole(found: dict[str, Any], name: str, least: int) -> int:
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**53:
        raise InvalidRecordError(f"{name}: missing, or not a whole number from {least} to 2**53 - 1")
    return value


def _place(value: Any) -> Place | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(each) in (int, float) for each in value):
        latitude, longitude = value
        if abs(latitude) <= 90 and abs(longitude) <= 180:  # checked before float(), which refuses large integers
            return float(latitude), float(longitude)
    raise InvalidRecordError("place: not a pair of latitude and longitude")
