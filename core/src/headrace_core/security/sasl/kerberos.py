"""Kerberos: the optional library, the tickets and keytabs of a configuration, and readable errors.

The library is python-gssapi over MIT Kerberos. Each call of the library names a keytab or a ticket cache (a credential
store), so each listener and each client of a process can have its own. All listeners and clients use the krb5.conf of
the process (KRB5_CONFIG).
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import (
    HeadraceError,
    InvalidConfigError,
    MissingDependencyError,
    NetworkError,
    SaslAuthenticationFailedError,
)
from .exchange import GSSAPI, failed
from .jaas import LoginModule
from .kerberos_names import RULES_KEY, PrincipalName, ShortNames, parse_name

logger = logging.getLogger("headrace.security")

MODULE = "Krb5LoginModule"
SERVICE_KEY = "sasl.kerberos.service.name"
KEYTAB_KEY, PRINCIPAL_KEY = "sasl.kerberos.keytab", "sasl.kerberos.principal"

# Numbers of Kerberos errors (RFC 4120, section 7.5.9, and MIT's own from 128), as offsets from the base of MIT's table.
_BASE = -1765328384
CLIENT_UNKNOWN, SERVICE_UNKNOWN, WRONG_KEY = 6, 7, 24
BAD_INTEGRITY, TICKET_EXPIRED, TICKET_NOT_YET_VALID, REPLAY, NOT_OURS, CLOCK_SKEW = 31, 32, 33, 34, 35, 37
MODIFIED, NO_KEY_OF_VERSION, NO_KEY = 41, 44, 45
NO_CACHE, WRONG_SERVICE, REALM_UNKNOWN, KDC_UNREACHABLE, NO_CACHE_FILE = 141, 144, 154, 156, 195
NOT_IN_KEYTAB, NOT_THIS_VERSION = 181, 230
#: Errors of a ticket that is for another service, or that no key of the keytab can decrypt.
_OTHER_KEY = (
    BAD_INTEGRITY, MODIFIED, NO_KEY_OF_VERSION, NO_KEY, NOT_OURS, WRONG_SERVICE, NOT_IN_KEYTAB, NOT_THIS_VERSION
)  # fmt: skip
_CACHE_NUMBER = itertools.count(1)
LOCK_S = 20.0  #: Seconds that a login with a keytab waits for another login of the same client.


def load_gssapi() -> Any:
    """Import python-gssapi. Raises MissingDependencyError."""
    try:
        return importlib.import_module("gssapi")
    except ImportError:
        raise MissingDependencyError(
            "GSSAPI (Kerberos) needs the package gssapi and MIT Kerberos: apt-get install gcc libkrb5-dev (Debian), "
            "then pip install 'headrace-core[kerberos]'"
        ) from None


def number_of(error: Any) -> int | None:
    """The number of the Kerberos error in a GSSError, as in RFC 4120; None if the GSSError has no number."""
    number = (int(error.min_code) & 0xFFFFFFFF) - (_BASE & 0xFFFFFFFF)
    return number if 0 <= number < 256 else None


def text_of(error: Any) -> str:
    """The library's text for a GSSError."""
    text = str(error.gen_message())
    major, _, minor = text.partition(", Minor ")
    minor = minor.partition(": ")[2]
    return (minor if minor and minor != "Unknown error" else major.partition(": ")[2] or text)[:300]


# -- servers -----------------------------------------------------------------------------------------------------------


class Acceptor:
    """The service principal of a listener and its keytab. The keytab is read for each exchange, so a new file needs no
    restart."""

    def __init__(self, module: LoginModule | None, values: Mapping[str, Any]) -> None:
        """``module``: the listener's Krb5LoginModule. Raises InvalidConfigError, and MissingDependencyError."""
        if module is None:
            raise InvalidConfigError(
                "GSSAPI (Kerberos) needs gssapi.sasl.jaas.config="
                'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="FILE" '
                'principal="kafka/HOST@REALM"; or set sasl.enabled.mechanisms to SCRAM-SHA-512'
            )
        if module.name != MODULE:
            raise InvalidConfigError(f"gssapi.sasl.jaas.config has {module.name[:100]}, but GSSAPI needs {MODULE}")
        if not module.flag("useKeyTab"):
            raise InvalidConfigError(f"sasl.jaas.config: {MODULE} of a server needs useKeyTab=true and a keyTab")
        self.keytab = keytab_path(module.option("keyTab"))
        name = _parsed_principal(module.option("principal"), "sasl.jaas.config: principal")
        if name.instance is None:
            raise InvalidConfigError(
                f"sasl.jaas.config: the principal {name} has no host; a server's principal is kafka/HOST@REALM"
            )
        service = _service_of(module, values)
        if service is not None and service != name.primary:
            raise InvalidConfigError(f"{SERVICE_KEY}={service[:100]}, but the principal of the listener is {name}")
        self.gssapi = gssapi = load_gssapi()
        self._kerberos = gssapi.MechType.kerberos
        try:
            self._name = gssapi.Name(str(name), gssapi.NameType.kerberos_principal)
            self.principal = str(self._name.canonicalize(self._kerberos))
            self._credentials()
        except gssapi.exceptions.GSSError as error:
            raise InvalidConfigError(_keytab_trouble(error, str(name), self.keytab)) from None
        own = parse_name(self.principal)
        realm = _default_realm(gssapi) or (own.realm if own is not None else None)
        self.names = ShortNames(values[RULES_KEY], realm or "")

    def context(self) -> Any:
        """Return the security context with which a server begins an exchange. Raises SaslAuthenticationFailedError if
        the keytab cannot be read now."""
        try:
            context = self.gssapi.SecurityContext(creds=self._credentials(), usage="accept")
        except self.gssapi.exceptions.GSSError as error:
            logger.warning("GSSAPI: %s", _keytab_trouble(error, self.principal, self.keytab))
            raise failed(GSSAPI, "the server cannot read its keytab; the server's log says why") from None
        context.__DEFER_STEP_ERRORS__ = False
        return context

    def _credentials(self) -> Any:
        return self.gssapi.Credentials(
            name=self._name, usage="accept", mechs=[self._kerberos], store={"keytab": self.keytab}
        )

    def end_of(self, context: Any) -> int:
        """Return when the ticket of a complete context ends, in milliseconds since 1970. The context cannot be used
        after this call.

        ``context.lifetime`` is not exact: for an acceptor it includes the clock skew that krb5.conf allows."""
        export = importlib.import_module("gssapi.raw.ext_krb5").krb5_export_lucid_sec_context
        return int(export(context, 1).endtime) * 1_000

    def refusal(self, error: Any) -> SaslAuthenticationFailedError:
        """Return the error for an exchange that the library ended."""
        number = number_of(error)
        if number in _OTHER_KEY:
            why = (
                f"the ticket is not for {self.principal}, or the server's keytab has an older key; "
                "check the host name and the keytab"
            )
        elif number == REPLAY:
            why = "the request is a replay of an earlier one"
        elif number == CLOCK_SKEW:
            why = "the clocks of client and server differ too much; synchronize them (NTP)"
        elif number == TICKET_EXPIRED or isinstance(error, _expiries(self.gssapi)):
            why = "the ticket has expired; run kinit"
        elif number == TICKET_NOT_YET_VALID:
            why = "the ticket is not valid yet; synchronize the clocks (NTP)"
        else:
            why = f"the client's message was refused: {text_of(error)}"
        return failed(GSSAPI, why)


def _default_realm(gssapi: Any) -> str | None:
    """The default realm of krb5.conf; None if krb5.conf has no default realm."""
    try:
        name = gssapi.Name("headrace", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return None
    return str(name).rpartition("@")[2] or None


# -- clients -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TicketSource:
    """The source of a client's tickets: a keytab, or else a ticket cache. ``cache`` None: the default cache of the
    process (KRB5CCNAME)."""

    service: str
    principal: str | None
    keytab: str | None
    cache: str | None = field(default=None)

    @classmethod
    def of(cls, module: LoginModule | None, config: Mapping[str, Any]) -> TicketSource:
        """Read ``sasl.kerberos.*`` and the login module. Raises InvalidConfigError."""
        service = _service_of(module, config)
        if service is None:
            raise InvalidConfigError(
                f"sasl.mechanism=GSSAPI (Kafka's default) needs {SERVICE_KEY}, such as kafka; for another mechanism "
                "set sasl.mechanism"
            )
        if module is None:
            keytab, principal, cache = config[KEYTAB_KEY], config[PRINCIPAL_KEY], None
        else:
            keytab = module.option("keyTab") if module.flag("useKeyTab") else None
            principal, cache = module.options.get("principal"), module.options.get("ticketCache")
            if keytab is None and not module.flag("useTicketCache"):
                raise InvalidConfigError(
                    f"sasl.jaas.config: {MODULE} needs useKeyTab=true with keyTab and principal, or useTicketCache=true"
                )
        if keytab and not principal:
            raise InvalidConfigError(f"a login with a keytab needs the client's principal ({PRINCIPAL_KEY})")
        if principal:
            principal = str(_parsed_principal(principal, PRINCIPAL_KEY))
        return cls(service, principal or None, keytab_path(keytab) if keytab else None, cache or None)


class Initiator:
    """Gets tickets for one client, from any thread. The tickets of a keytab are in a cache in memory, and the library
    gets new tickets after half of their lifetime."""

    def __init__(self, source: TicketSource) -> None:
        """Raises MissingDependencyError."""
        self.source = source
        self.gssapi = load_gssapi()
        self._kerberos = self.gssapi.MechType.kerberos
        self._memory = _new_cache()
        self._lock = threading.Lock()  # the library empties the cache in memory before it stores new tickets

    def begin(self, host: str) -> tuple[Any, bytes]:
        """Begin an exchange with the service at ``host``; returns the security context, and the first bytes for the
        server. May wait for the KDC. Raises SaslAuthenticationFailedError or NetworkError."""
        error = self.gssapi.exceptions.GSSError
        try:
            if self.source.keytab is None:
                return self._begin(host)
            if not self._lock.acquire(timeout=LOCK_S):
                raise NetworkError("GSSAPI: another login of this client has waited for the KDC for too long; retry")
            try:
                return self._begin_by_keytab(host)
            finally:
                self._lock.release()
        except error as found:
            raise self.failure(found, host) from None

    def _begin_by_keytab(self, host: str) -> tuple[Any, bytes]:
        try:
            return self._begin(host)
        except self.gssapi.exceptions.GSSError as error:
            if not self._is_expired(error):
                raise
        # The library did not renew the tickets in time, and would try again only after 30 s: log in with an empty
        # cache.
        self._memory = _new_cache()
        return self._begin(host)

    def _begin(self, host: str) -> tuple[Any, bytes]:
        gssapi, source = self.gssapi, self.source
        name = gssapi.Name(source.principal, gssapi.NameType.kerberos_principal) if source.principal else None
        store: dict[str, str] = {}
        # check the keytab's key first: without the key, the library reports only a missing ticket
        if source.keytab is not None:
            gssapi.Credentials(name=name, usage="accept", mechs=[self._kerberos], store={"keytab": source.keytab})
            store = {"client_keytab": source.keytab, "ccache": self._memory}
        elif source.cache is not None:
            store = {"ccache": source.cache}
        flag = gssapi.RequirementFlag
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{source.service}@{host}", gssapi.NameType.hostbased_service),
            creds=gssapi.Credentials(name=name, usage="initiate", mechs=[self._kerberos], store=store or None),
            usage="initiate",
            mech=self._kerberos,
            flags=flag.mutual_authentication | flag.integrity,
        )
        context.__DEFER_STEP_ERRORS__ = False
        return context, context.step() or b""

    def _is_expired(self, error: Any) -> bool:
        return number_of(error) == TICKET_EXPIRED or isinstance(error, _expiries(self.gssapi))

    def is_mutual(self, context: Any) -> bool:
        """Whether the server has proved its identity."""
        return bool(context.actual_flags & self.gssapi.RequirementFlag.mutual_authentication)

    def failure(self, error: Any, host: str) -> HeadraceError:
        """Return the error for a GSSError, with the cause and the cure."""
        source, number, text = self.source, number_of(error), text_of(error)
        service = f"{source.service}/{host}"
        if number == KDC_UNREACHABLE:
            return NetworkError(f"GSSAPI: no KDC answers ({text}); check krb5.conf and the network")
        if source.keytab is not None and self._is_expired(error):
            return NetworkError("GSSAPI: the ticket ended during the exchange; retry")
        if number == REALM_UNKNOWN:
            why = f"krb5.conf does not know the realm ({text})"
        elif number == SERVICE_UNKNOWN:
            why = (
                f"the KDC does not know the service {service} ({text}); create the principal, or check "
                f"{SERVICE_KEY} and the host name in the address"
            )
        elif number == CLIENT_UNKNOWN:
            why = f"the KDC does not know the client {source.principal} ({text}); check {PRINCIPAL_KEY}"
        elif number in (WRONG_KEY, BAD_INTEGRITY) and source.keytab is not None:
            why = f"the KDC refuses the key in {source.keytab}; get a new keytab for {source.principal} (ktadd)"
        elif number == CLOCK_SKEW:
            why = "the clocks of client and KDC or server differ too much; synchronize them (NTP)"
        elif self._is_expired(error):
            why = f"the ticket in {self._cache} has expired; run kinit"
        elif source.keytab is not None and _is_keytab_trouble(error):
            why = _keytab_trouble(error, str(source.principal), source.keytab)
        elif isinstance(error, self.gssapi.exceptions.MissingCredentialsError) or number in (NO_CACHE, NO_CACHE_FILE):
            of = "" if source.principal is None else f" for {source.principal}"
            why = f"there is no ticket{of} in {self._cache} ({text}); run kinit, or set {KEYTAB_KEY}"
        else:
            why = f"{service}: {text}"
        return failed(GSSAPI, why)

    @property
    def _cache(self) -> str:
        return self.source.cache or "the default ticket cache"


def _new_cache() -> str:
    return f"MEMORY:headrace-{os.getpid()}-{next(_CACHE_NUMBER)}"


# -- both --------------------------------------------------------------------------------------------------------------


def keytab_path(text: str) -> str:
    """The path of a keytab, which may be written with FILE: or file:// before it."""
    for prefix in ("FILE:", "file://", "file:"):
        text = text.removeprefix(prefix)
    return text


def _expiries(gssapi: Any) -> tuple[type[Exception], ...]:
    """The library's errors for a ticket that ends during an exchange."""
    return gssapi.exceptions.ExpiredCredentialsError, gssapi.exceptions.ExpiredContextError


def _service_of(module: LoginModule | None, values: Mapping[str, Any]) -> str | None:
    """The name of the service, from the login module or the configuration. Raises InvalidConfigError if the two names
    differ."""
    own, general = None if module is None else module.options.get("serviceName"), values[SERVICE_KEY]
    if own and general and own != general:
        raise InvalidConfigError(
            f"sasl.jaas.config has serviceName={own[:100]}, but {SERVICE_KEY} is {general[:100]}; set both to "
            "the same name"
        )
    service = own or general or None
    if service is not None and not service.replace("-", "").replace("_", "").isalnum():
        raise InvalidConfigError(
            f"{SERVICE_KEY}={service[:100]!r}: write only the first part of the principal, such as kafka"
        )
    return service


def _parsed_principal(text: str, key: str) -> PrincipalName:
    name = parse_name(text)
    if name is None:
        raise InvalidConfigError(f"{key}: {text[:200]!r} is not primary@REALM or primary/HOST@REALM")
    return name


def _is_keytab_trouble(error: Any) -> bool:
    return number_of(error) == NOT_IN_KEYTAB or "key table" in text_of(error).lower()


def _keytab_trouble(error: Any, principal: str, keytab: str) -> str:
    if not Path(keytab).exists():
        return f"the keytab {keytab} does not exist; write one with kadmin: ktadd -k {keytab} {principal}"
    if not os.access(keytab, os.R_OK):
        return f"the keytab {keytab} cannot be read by this process; change its owner or mode"
    return f"the keytab {keytab} has no key of {principal} ({text_of(error)}); see klist -k {keytab}"
