"""Generate the table of docs/security-acls.md from the option `access` of the protos.

tools/access_docs.py generate    write it
tools/access_docs.py check       fail when it does not match the protos (part of `make check`)
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from generated_part import keep

import headrace_protos.v1 as protos
from headrace_core.security.rules import MethodAccess, Rule, access_of

PAGE = Path(__file__).parent.parent / "docs" / "security-acls.md"


def rendered() -> str:
    """One row for each call."""
    lines = ["| call | a client needs | roles of nodes |", "|---|---|---|"]
    for module in pkgutil.iter_modules(protos.__path__):
        if not module.name.endswith("_pb2"):
            continue
        for service in importlib.import_module(f"{protos.__name__}.{module.name}").DESCRIPTOR.services_by_name.values():
            for each in service.methods:
                access = access_of(f"/{service.full_name}/{each.name}")
                if access is None:
                    raise SystemExit(f"{service.name}/{each.name} has no option (access); add it to the .proto file")
                roles = ", ".join(sorted(access.roles)) or "none"
                lines.append(f"| `{access.method}` | {_needs(access)} | {roles} |")
    return "\n".join([*lines, ""])


def _needs(access: MethodAccess) -> str:
    if access.is_open:
        return "nothing"
    if access.is_authenticated:
        return "authentication"
    if not access.rules:
        return "nodes only"
    parts = [_shown(rule) for rule in access.rules if not rule.alternative]
    either = [_shown(rule) for rule in access.alternatives]
    return "; ".join([*parts, *([" or ".join(either)] if either else [])])


def _shown(rule: Rule) -> str:
    resource = rule.resource.name.lower().replace("_", " ")
    if rule.is_any:
        return f"{rule.operation.name} on any {resource}"
    what = f"{resource} `{'.'.join(rule.path)}`" if rule.path else resource
    return f"{rule.operation.name} on {'each ' if rule.each and rule.path else ''}{what}"


def main(command: str) -> int:
    return keep(PAGE, rendered(), tool=Path(__file__).name, source="the protos declare", command=command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
