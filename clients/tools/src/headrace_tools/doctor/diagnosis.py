"""What is wrong, and what cures it: pure functions from facts to findings, one for each rule.

    node_rules.py   reach       names, addresses that nobody reaches or that lead elsewhere, processes that do not serve
                    quorum      controllers that are away, brokers whose metadata is old
                    disks       offline, damaged, full, slow; descriptors
                    agreement   versions, feature levels, clocks
    data_rules.py   partitions  without a leader, below min.insync.replicas, short of copies; moves that stand still
                    groups      without a coordinator, in a storm of rebalances, stopped, behind, with records lost
    pattern_rules.py            how the cluster is used: what works today and becomes expensive

An ERROR keeps somebody from writing or reading now, or is one failure away from that; a WARNING will become one, or
hides one. ADVICE is about use, and leaves a cluster healthy. A rule that is not sure is silent: a healthy cluster gets
no findings at all. One of which nothing was seen gets none either, and is not called healthy for that.
"""

from __future__ import annotations

from . import data_rules, node_rules, pattern_rules
from .facts import Facts
from .findings import RULES, Finding, Severity

__all__ = ["RULES", "Finding", "Severity", "data_rules", "diagnose", "is_healthy", "node_rules", "pattern_rules"]


def diagnose(facts: Facts) -> list[Finding]:
    """Every finding: errors, warnings, advice; else in the order of the rules."""
    found = [finding for function in RULES.values() for finding in function(facts)]
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


def is_healthy(facts: Facts) -> bool:
    """No error or warning was found, and every question was answered that a healthy cluster answers."""
    found = [finding for finding in diagnose(facts) if finding.severity is not Severity.ADVICE]
    return not found and all(each.is_no_fault for each in facts.not_asked)
