"""Generate docs/reference/configuration.md from the declarations of all keys.

tools/config_docs.py generate    write it
tools/config_docs.py check       fail when it does not match the declarations (part of `make check`)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from headrace_core.config import INT_MAX, LONG_MAX, ConfigKey, Kind, Scope, Status
from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.config.server_keys import SERVER, SERVER_GROUPS
from headrace_core.config.topic_keys import TOPIC, TOPIC_DEFAULT_KEYS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "configuration.md"
COMMAND = "tools/config_docs.py generate"

INTRODUCTION = """# Configuration

`tools/config_docs.py` generates this page from the declarations of the keys. To change the page, change the
declarations in `core/config/`, then run `.venv/bin/python tools/config_docs.py generate`.

This page lists every configuration key of Headrace; keys that Kafka has too have Kafka's names. If you set an unknown
key, the error suggests a similar name. Each key has one of three states:

* **honoured**: the key does what its description says.
* **accepted**: another key or mechanism replaces the key, or its feature is not built yet. A note in italics names the
  replacement, or says what is not built. When you set an accepted key, Headrace prints or logs this note.
* **refused**: any value other than the default is an error, because ignoring the key would be unsafe. The note of a
  refused key says why.

A name that ends in `.*` stands for every key that begins with the part before `*`, unless the page lists that key.

## Where values come from

A broker's key has the first of these values that is set, as in Kafka:

1. the value for this broker: `headrace configs alter --broker 1 --set log.cleaner.threads=2`
2. the value for all brokers: `headrace configs alter --broker-default --set log.cleaner.threads=2`
3. the value on the broker's command line (`-o key=value`), then the value in its properties file
4. the default

For a topic's key, a value that is set for the topic overrides all other values (`headrace configs alter -t orders
--set retention.ms=60000`). A topic without its own value uses the value of the brokers' key in the column "server's
key". `headrace configs describe` shows the effective value of each key that is set, and the values that this value
overrides. With `--all`, the command also shows keys that have their default. With `-o json`, the command also prints
the type, the allowed values and the description of each key.

The column "changed" says how you can change a key:

* **read-only**: in the properties file, followed by a restart;
* **per-broker**: while the broker runs, for one broker at a time;
* **cluster-wide**: while the brokers run, for all brokers or for a single broker;
* **per-topic**: at any time, for one topic.

Numbers have no units, as in Kafka's files: 7 days are `604800000`, 1 GiB is `1073741824`. If you write `7d` or
`1GiB`, the error shows the number to write. Lists have commas between their items. Headrace refuses values that
contradict each other, such as a `min.compaction.lag.ms` above `max.compaction.lag.ms`, when a node starts and when you
alter a key.
"""

CLIENTS = """Pass a client's keys in a dict with dotted names, or as keywords with underscores:
`Producer({"linger.ms": 5})`, `Producer(linger_ms=5)`. The keys of a client cannot change while the client is open.
If `bootstrap.servers` is not set, a client uses the addresses in the environment variable `HEADRACE_BOOTSTRAP_SERVERS`,
or `127.0.0.1:9095` without this variable.
"""


def page() -> str:
    parts = [INTRODUCTION, _counts(), "## Topics\n", _topics()]
    parts += ["## Servers\n"]
    for title, keys in SERVER_GROUPS.items():
        parts += [f"### {title}\n", _table(keys, changeable=True)]
    parts += ["## Clients\n", CLIENTS]
    common = [key for name, key in ADMIN.keys.items() if PRODUCER.keys.get(name) is key] + list(ADMIN.families.values())
    parts += ["### Every client\n", _table(common, changeable=False)]
    for definition in (PRODUCER, CONSUMER, ADMIN):
        own = [key for key in _all(definition) if key not in common]
        parts += [f"### {definition.where.capitalize()}\n", _table(own, changeable=False)]
    return "\n".join(parts).rstrip() + "\n"


def _all(definition: object) -> list[ConfigKey]:
    return [*definition.keys.values(), *definition.families.values()]  # type: ignore[attr-defined]


def _counts() -> str:
    lines = ["| | honoured | accepted | refused |", "|---|---:|---:|---:|"]
    for title, definition in (
        ("topics", TOPIC),
        ("servers", SERVER),
        ("producer", PRODUCER),
        ("consumer", CONSUMER),
        ("admin", ADMIN),
    ):
        counts = [sum(key.status is status for key in _all(definition)) for status in Status]
        lines.append(f"| {title} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"


def _topics() -> str:
    head = ("key", "type", "default", "allowed", "server's key", "status", "what it does", "source")
    rows = [
        (
            f"`{key.name}`",
            key.kind.value,
            _default(key),
            key.allowed,
            f"`{TOPIC_DEFAULT_KEYS[key.name]}`" if key.name in TOPIC_DEFAULT_KEYS else "",
            key.status.value,
            _says(key),
            key.source,
        )
        for key in sorted(TOPIC.keys.values(), key=lambda key: key.name)
    ]
    return _markdown(head, rows)


def _table(keys: Iterable[ConfigKey], *, changeable: bool) -> str:
    head = ["key", "type", "default", "allowed", "changed", "status", "what it does", "source"]
    rows = []
    for key in sorted(keys, key=lambda key: key.name):
        row = [f"`{key.name}`", key.kind.value, _default(key), key.allowed, _scope(key), key.status.value, _says(key)]
        rows.append((*row, key.source))
    if not changeable:
        head.pop(4)
        rows = [(*row[:4], *row[5:]) for row in rows]
    return _markdown(head, rows)


def _says(key: ConfigKey) -> str:
    remark = key.note or key.refusal
    if not remark:
        return key.doc
    # Do not capitalize a remark that begins with gRPC, or with the name of a configuration key (a word with a dot).
    keeps_case = remark.startswith("gRPC") or "." in remark.split()[0]
    return f"{key.doc} *{remark if keeps_case else remark[0].upper() + remark[1:]}.*"


def _scope(key: ConfigKey) -> str:
    return "" if key.name.endswith(".*") and key.scope is Scope.READ_ONLY else key.scope.value


def _default(key: ConfigKey) -> str:
    if key.name.endswith(".*") or key.default is None or key.kind is Kind.PASSWORD:
        return ""
    if key.kind is Kind.DOUBLE and key.default == float("inf"):
        return "no limit"
    if key.default == LONG_MAX and key.kind is Kind.LONG:
        return "`9223372036854775807` (no limit)"
    if key.default == INT_MAX and key.kind is Kind.INT:
        return "`2147483647` (no limit)"
    text = key.format(key.default)
    return f"`{text}`" if text else "(empty)"


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    if arguments == ["generate"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if arguments != ["check"]:
        print(__doc__)
        return 2
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE.relative_to(ROOT)} is not what the declarations say: run .venv/bin/python {COMMAND}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
