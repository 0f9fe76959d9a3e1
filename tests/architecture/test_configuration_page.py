"""docs/reference/configuration.md matches the declarations; a stale page is found, with the command to generate it."""

from __future__ import annotations

from pathlib import Path

import config_docs
import pytest

from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.config.server_keys import SERVER, SERVER_GROUPS
from headrace_core.config.topic_keys import TOPIC


def test_the_page_is_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert config_docs.main(["check"]) == 0, capsys.readouterr().out


def test_a_stale_page_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config_docs, "ROOT", tmp_path)
    monkeypatch.setattr(config_docs, "PAGE", tmp_path / "configuration.md")
    assert config_docs.main(["check"]) == 1
    assert config_docs.main(["generate"]) == 0
    assert config_docs.main(["check"]) == 0
    config_docs.PAGE.write_text(config_docs.page().replace("honoured", "honored"))
    capsys.readouterr()
    assert config_docs.main(["check"]) == 1
    assert "run .venv/bin/python tools/config_docs.py generate" in capsys.readouterr().out


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
