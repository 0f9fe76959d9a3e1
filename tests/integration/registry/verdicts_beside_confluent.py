"""Compare the registry's verdicts on random pairs of schemas with another registry's, and print a table.

    python -m tests.integration.registry.verdicts_beside_confluent --url http://127.0.0.1:8081 --pairs 1850
    python -m tests.integration.registry.verdicts_beside_confluent --command 'java -cp ... Peer' --language JSON

``--url``: a registry with Confluent's REST API. ``--command``: a program that reads a JSON object with ``language``,
``old`` and ``new`` from each line, and answers with a line ``{"reasons": [...]}`` (empty: compatible) or
``{"error": "..."}``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from headrace_registry.compat import Level, check
from headrace_registry.schemas import Schema, SchemaType, parse
from tests.worlds.schema_pairs import SchemaPair, pairs

_HEADERS = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


def our_kinds(pair: SchemaPair) -> list[str]:
    old, new = (parse(Schema(SchemaType[pair.language], text), {}) for text in (pair.old, pair.new))
    return sorted({one.kind for one in check(Level.BACKWARD, new, [old])})


def by_command(command: str, asked: Iterable[SchemaPair]) -> Iterator[dict[str, Any]]:
    lines = [json.dumps({"language": pair.language, "old": pair.old, "new": pair.new}) for pair in asked]
    done = subprocess.run(
        shlex.split(command), input="\n".join(lines) + "\n", capture_output=True, text=True, check=True
    )
    for line in done.stdout.splitlines():
        yield json.loads(line)


def by_url(url: str, asked: Iterable[SchemaPair]) -> Iterator[dict[str, Any]]:
    for number, pair in enumerate(asked):
        subject = f"pair-{pair.language.lower()}-{number}"
        try:
            _call(url, "PUT", f"/config/{subject}", {"compatibility": "BACKWARD"})
            _call(url, "POST", f"/subjects/{subject}/versions", {"schemaType": pair.language, "schema": pair.old})
            answer = _call(
                url,
                "POST",
                f"/compatibility/subjects/{subject}/versions/latest?verbose=true",
                {"schemaType": pair.language, "schema": pair.new},
            )
            yield {"reasons": [] if answer["is_compatible"] else answer.get("messages") or ["incompatible"]}
        except urllib.error.HTTPError as error:
            yield {"error": f"{error.code}: {error.read().decode(errors='replace')[:200]}"}


def _call(url: str, method: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), _HEADERS, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def table(asked: list[SchemaPair], answers: Iterable[dict[str, Any]]) -> str:
    """The counts of all four cases, and each kind of difference with its number and smallest example."""
    counts: Counter[str] = Counter()
    differences: dict[str, list[SchemaPair]] = defaultdict(list)
    for pair, answer in zip(asked, answers, strict=True):
        ours = our_kinds(pair)
        if "error" in answer:
            counts["the other registry fails"] += 1
            differences[f"fails: {answer['error'][:60]}"].append(pair)
            continue
        theirs = sorted(set(answer["reasons"]))
        counts[f"{'refused' if ours else 'accepted'} here, {'refused' if theirs else 'accepted'} there"] += 1
        if bool(ours) != bool(theirs):
            differences[f"refused {'here' if ours else 'there'}: {', '.join(ours or theirs)}"].append(pair)
    lines = [f"{len(asked)} pairs: " + ", ".join(f"{count} {what}" for what, count in counts.most_common())]
    for what, found in sorted(differences.items(), key=lambda item: -len(item[1])):
        least = min(found, key=lambda pair: len(pair.edits))
        lines.append(f"{len(found):5} {what} ({', '.join(least.edits)})\n      {least.old}\n      {least.new}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--command")
    parser.add_argument("--pairs", type=int, default=1_850)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--language", choices=["JSON", "PROTOBUF"], action="append")
    given = parser.parse_args()
    if (given.url is None) is (given.command is None):
        parser.error("give --url or --command")
    for language in given.language or ["JSON", "PROTOBUF"]:
        asked = list(pairs(given.seed, given.pairs, language))
        answers = by_url(given.url, asked) if given.url else by_command(given.command, asked)
        print(f"{language}: {table(asked, answers)}")


if __name__ == "__main__":
    main()
