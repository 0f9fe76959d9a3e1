"""docs/reference/configuration.md has a row for each key. (`make check` fails if the page is stale.)"""

from __future__ import annotations

import config_docs

from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.config.server_keys import SERVER, SERVER_GROUPS
from headrace_core.config.topic_keys import TOPIC


def test_each_key_has_a_row_where_it_belongs() -> None:
    page = config_docs.page()
    topics, rest = page.split("## Servers\n")
    servers, clients = rest.split("## Clients\n")
    for text, definitions in ((topics, (TOPIC,)), (servers, (SERVER,)), (clients, (PRODUCER, CONSUMER, ADMIN))):
        for definition in definitions:
            for key in (*definition.keys.values(), *definition.families.values()):
                assert f"\n| `{key.name}` | " in text, f"{definition.where}: {key.name}"
    assert sum(len(keys) for keys in SERVER_GROUPS.values()) == len(SERVER.keys) + len(SERVER.families)
    assert servers.count("\n| `") == len(SERVER.keys) + len(SERVER.families)
