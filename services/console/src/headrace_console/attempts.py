"""Limits on sign-in attempts, which stop the guessing of passwords without locking other users out. Pure.

A wrong password takes one token from each of two buckets: the bucket of the address, and the bucket of the user name. A
correct password costs no token. Each bucket gets one token back in REFILL_S seconds.

* Guesses from one address do not affect other addresses.
* A user who has signed in from an address before has a separate bucket for this pair of user and address. Therefore the
  user can still sign in while attackers guess the user's password from other addresses, or other passwords from behind
  the same proxy.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from headrace_core.security.acl_types import network_of as network_of

#: Maximum number of wrong passwords in a row: from one address, and for one user name from all addresses.
PER_ADDRESS_MAX, PER_USER_MAX = 10, 30
#: Seconds after which one more attempt is allowed.
REFILL_S = 30.0
#: Maximum number of buckets, and of pairs of a user and an address, that are kept; the oldest are removed.
KEPT_MAX = 10_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Bucket:
    __slots__ = ("at_s", "tokens")

    def __init__(self, size: int, now: float) -> None:
        self.tokens, self.at_s = float(size), now


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in attempt that may continue. ``keys``: the buckets from which the attempt took a token each."""

    keys: tuple[tuple[bytes, int], ...]
    pair: bytes


class Attempts:
    """``clock``: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[bytes, _Bucket] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, user: str, address: str) -> Attempt | float:
        """Take one token for an attempt from each of its buckets; if a bucket is empty, return how many seconds to
        wait."""
        place = network_of(address)
        pair = _key("pair", place, user)
        keys: tuple[tuple[bytes, int], ...]
        if pair in self._known:
            keys = ((pair, PER_ADDRESS_MAX),)
        else:
            keys = ((_key("address", place), PER_ADDRESS_MAX), (_key("user", user), PER_USER_MAX))
        for key, size in keys:  # check all buckets before paying
            tokens = self._filled(key, size).tokens
            if tokens < 1:
                return (1 - tokens) * REFILL_S
        for key, size in keys:
            self._filled(key, size).tokens -= 1
        return Attempt(keys, pair)

    def worked(self, attempt: Attempt) -> None:
        """Record that the password was right: return the tokens of the attempt, and remember its pair of user and
        address."""
        self.untried(attempt)
        self._known[attempt.pair] = None
        self._known.move_to_end(attempt.pair)
        _trim(self._known)

    def untried(self, attempt: Attempt) -> None:
        """Return the tokens of the attempt, because the password was right, or because the cluster did not check it."""
        for key, size in attempt.keys:
            bucket = self._filled(key, size)
            bucket.tokens = min(float(size), bucket.tokens + 1)

    def _filled(self, key: bytes, size: int) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(size, now)
            _trim(self._buckets)
        bucket.tokens = min(float(size), bucket.tokens + (now - bucket.at_s) / REFILL_S)
        bucket.at_s = now
        self._buckets.move_to_end(key)
        return bucket


def browser_address(peer: str, forwarded: str, trusted: tuple[Network, ...]) -> str:
    """The address of the browser. The result is the peer's address. If the peer is a trusted proxy, the result is the
    last address in the X-Forwarded-For header that does not belong to a trusted proxy."""
    found = peer
    for text in reversed(forwarded.split(",") if forwarded else []):
        if not _is_in(found, trusted):
            return found
        try:
            found = str(ipaddress.ip_address(text.strip()))
        except ValueError:
            return found
    return found


def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped  # an IPv4 address at a listener on [::]
    return any(found in network for network in networks)


def _key(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()


def _trim(kept: OrderedDict[bytes, object] | OrderedDict[bytes, _Bucket] | OrderedDict[bytes, None]) -> None:
    while len(kept) > KEPT_MAX:
        kept.popitem(last=False)
