"""Derive findings (faults and advice) from the collected state of a cluster: pure functions, one per rule.

    node_rules.py   reach       names, addresses that are unreachable or wrong, processes that do not serve
                    quorum      absent controllers, brokers with old metadata
                    disks       offline, damaged, full, slow; descriptors
                    agreement   versions, feature levels, clocks
    security_rules.py           why an address refuses the client: certificates, TLS, logins, tokens, Kerberos;
                                a directory that other users may read
    data_rules.py   partitions  without leader, below min.insync.replicas, under-replicated; stuck reassignments
                    groups      without coordinator, rebalance storms, stopped, behind, with records lost
    transaction_rules.py        hanging transactions, transactions that stay open or undecided for long
    pattern_rules.py            patterns of use that work today and become expensive

An ERROR blocks writes or reads now, or will block them after one more failure. A WARNING will become an error, or can
hide one. ADVICE is about the use of a cluster, and does not make the cluster unhealthy. A rule that is not certain
reports nothing: a healthy cluster gets no findings. A cluster that could not be observed gets no findings, but does not
count as healthy.
"""

from __future__ import annotations

from . import data_rules, node_rules, pattern_rules, security_rules, transaction_rules
from .facts import Facts
from .findings import RULES, Finding, Severity

__all__ = [
    "RULES",
    "Finding",
    "Severity",
    "data_rules",
    "diagnose",
    "is_healthy",
    "node_rules",
    "pattern_rules",
    "security_rules",
    "transaction_rules",
]


def diagnose(facts: Facts) -> list[Finding]:
    """All findings: errors, warnings, advice; findings of the same severity are in the order of the rules."""
    found = [finding for function in RULES.values() for finding in function(facts)]
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


def is_healthy(facts: Facts) -> bool:
    """Whether the cluster is healthy: the doctor found only advice, and every request that a healthy cluster answers
    succeeded."""
    found = [finding for finding in diagnose(facts) if finding.severity is not Severity.ADVICE]
    return not found and all(each.is_no_fault for each in facts.not_asked)
