"""A registry's configuration: a node without gRPC listeners and directories."""

from __future__ import annotations

import socket

import pytest

from headrace_core.config.registry_keys import LEVELS
from headrace_core.errors import InvalidConfigError
from headrace_core.node.arguments import StartCommand, parse_command
from headrace_core.node.config import NodeConfig
from headrace_registry.compat import Level
from headrace_registry.settings import RegistrySettings

BASE = {"kafkastore.bootstrap.servers": "127.0.0.1:9095"}


def settings_of(**keys: str) -> RegistrySettings:
    named = {key.replace("_", "."): value for key, value in keys.items()}
    return RegistrySettings.of(NodeConfig.from_properties(BASE | named, role="registry"))


def test_the_defaults_are_confluents_but_for_the_time_limit() -> None:
    settings = settings_of()
    assert [each.address for each in settings.listeners] == ["127.0.0.1:8081"]
    assert (settings.topic, settings.replication_factor, settings.group_id) == ("_schemas", 3, "schema-registry")
    assert (settings.compatibility_level, settings.mode_mutability, settings.is_eligible) == ("BACKWARD", True, True)
    assert (settings.write_timeout_s, settings.init_timeout_s) == (10.0, 60.0)


def test_the_key_of_the_level_takes_the_levels_of_the_registry() -> None:
    assert set(LEVELS) == {str(each) for each in Level}


def test_a_registry_needs_no_directory_and_no_grpc_listener() -> None:
    config = NodeConfig.from_properties(BASE | {"listeners": "client://a:1"}, role="registry")
    assert (config.log_dirs, config.listeners, config.state_file) == ((), (), "")


def test_the_environment_of_a_container_configures_it() -> None:
    environment = {"HEADRACE_KAFKASTORE_BOOTSTRAP_SERVERS": "broker:9095", "HEADRACE_REGISTRY_LISTENERS": "http://:80"}
    command = parse_command(["--environment"], program="registry", role="registry", environment=environment)
    assert isinstance(command, StartCommand)
    settings = RegistrySettings.of(command.config)
    assert settings.bootstrap_servers == ("broker:9095",)
    assert settings.url(80) == f"http://{socket.gethostname()}:80"


def test_the_advertised_url_is_the_first_listener_unless_it_is_set() -> None:
    assert settings_of(registry_listeners="http://127.0.0.1:0,http://[::1]:0").url(4711) == "http://127.0.0.1:4711"
    assert settings_of(registry_advertised_url="http://registry.example:80/").url(4711) == "http://registry.example:80"


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"kafkastore_bootstrap_servers": ""}, "kafkastore.bootstrap.servers is not set"),
        ({"kafkastore_bootstrap_servers": "PLAINTEXT://a:1"}, "write host:port"),
        ({"registry_listeners": ""}, "registry.listeners is empty"),
        ({"registry_listeners": "8081"}, "write http://host:port"),
        ({"registry_listeners": "https://127.0.0.1:8081"}, "no certificate: set ssl.keystore.location"),
        ({"registry_listeners": "http://127.0.0.1:70000"}, "port 70000 is above 65535"),
        ({"registry_listeners": "http://127.0.0.1:1,http://127.0.0.1:1"}, "given twice"),
        ({"registry_advertised_url": "registry:8081"}, "write http://host:port"),
        ({"schema_compatibility_level": "SIDEWARD"}, "schema.compatibility.level"),
    ],
)
def test_wrong_values_are_refused_with_their_key(keys: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidConfigError, match=error):
        settings_of(**keys)


def test_format_is_refused_because_a_registry_has_no_directory() -> None:
    with pytest.raises(InvalidConfigError, match="a registry has no directories"):
        parse_command(["format", "--cluster-id", "x"], program="registry", role="registry")
