"""Doctor rules about certificates and logins, one for each cause, so that scripts can tell them apart; and about other
users of a local cluster's machine. Pure.

The modules ``headrace_core.security.trouble`` (TLS) and logins.py (SASL) define the causes. If all bootstrap addresses
refuse the client, these rules report the cause, and the rule no-cluster reports nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from headrace_core.security.trouble import TlsCause

from .facts import Facts, Refusal, Tried
from .findings import Finding, Rule, Severity, rule
from .logins import LoginCause


def _refused_by(cause: str) -> Rule:
    """The rule for one cause: it reports each address that refuses the client for this cause."""

    def found(facts: Facts) -> Iterator[Finding]:
        for where, tried in _addresses(facts):
            if tried.refusal is not None and tried.refusal.rule == cause:
                yield Finding(cause, Severity.ERROR, _what(tried, tried.refusal), where, tried.refusal.cure)

    found.__doc__ = f"An address refuses the client, or the client refuses the address: {cause}."
    return found


for _cause in (*TlsCause, *LoginCause):
    rule(str(_cause))(_refused_by(str(_cause)))


@rule("open-directory")
def open_directory(facts: Facts) -> Iterator[Finding]:
    """Other users of this machine may read the cluster's records, metadata and logs."""
    if facts.is_data_open:
        yield Finding(
            "open-directory",
            Severity.ADVICE,
            "other users of this machine may read the cluster's records, metadata and logs",
            facts.data,
            "start the cluster with `headrace up --secure`, or run: chmod 700 " + shlex.quote(facts.data),
        )


def _what(tried: Tried, refusal: Refusal) -> str:
    kind = "TLS with" if refusal.rule in set(TlsCause) else "the login at"
    return f"{kind} {tried.address} fails: {refusal.what}"


def _addresses(facts: Facts) -> Iterator[tuple[str, Tried]]:
    """The addresses of nodes, and the bootstrap addresses. A bootstrap address is left out if it is also the address of
    a node that refuses the client."""
    nodes = [
        (f"{role} {node_id} at {tried.address}", tried)
        for role, all_tried in (("broker", facts.brokers), ("coordinator", facts.coordinators))
        for node_id, tried in sorted(all_tried.items())
    ]
    known = {tried.address for _, tried in nodes if tried.refusal is not None}
    yield from nodes
    yield from ((tried.address, tried) for tried in facts.bootstrap if tried.address not in known)
