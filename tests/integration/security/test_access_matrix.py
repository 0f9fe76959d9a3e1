"""The matrix: every call, made by every kind of caller on the real ports of a secured cluster, is refused exactly when
access_expectations.py says so."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory, text_format

import headrace_protos.v1 as protos
from headrace import LocalCluster
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.gate import HOST_KEY, PRINCIPAL_KEY
from headrace_core.security.rules import access_of
from headrace_protos.v1 import security_pb2
from headrace_tools.certs.authority import USER, Authority, Subject
from headrace_tools.local import nodes
from tests.integration.security.access_expectations import NAMED, NAMED_BY_ROLE, NODES, OPEN, RIGHTS, VARIANTS

ROLES = ("controller", "broker", "coordinator", "registry", "console")
#: Numbers of the errors that refuse a caller: 29 topic, 30 group, 31 cluster, 53 transactional id, 65 token.
REFUSALS = {29, 30, 31, 53, 65}
ANONYMOUS = "anonymous"  #: A caller without a certificate and without a login.
CALL_S = 1.5  #: A call that waits for longer was let in.
#: Time limit of a call that is refused: the refusal does not wait, but the machine may be slow.
REFUSAL_S = 10.0


@dataclass(frozen=True)
class Method:
    """One method of the protos. ``name``: Service/Method."""

    name: str
    path: str
    request: type
    response: type
    is_stream: bool
    answers_stream: bool


def methods() -> dict[str, Method]:
    found = {}
    for module in pkgutil.iter_modules(protos.__path__):
        if not module.name.endswith("_pb2"):
            continue
        for service in importlib.import_module(f"{protos.__name__}.{module.name}").DESCRIPTOR.services_by_name.values():
            for each in service.methods:
                name = f"{service.name}/{each.name}"
                found[name] = Method(
                    name,
                    f"/{service.full_name}/{each.name}",
                    message_factory.GetMessageClass(each.input_type),
                    message_factory.GetMessageClass(each.output_type),
                    each.client_streaming,
                    each.server_streaming,
                )
    return found


METHODS = methods()


@dataclass
class World:
    """A running cluster, and channels to its ports with the certificates of callers."""

    directory: Path
    ports: dict[str, str]
    channels: dict[tuple[str, str], grpc.Channel] = field(default_factory=dict)

    def channel(self, port: str, caller: str) -> grpc.Channel:
        found = self.channels.get((port, caller))
        if found is None:
            own = self.directory / "security"
            options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            ca = (own / "ca.pem").read_bytes()
            if caller == ANONYMOUS:
                credentials = grpc.ssl_channel_credentials(ca)
            else:
                pem = (own / f"{caller}.pem").read_bytes()
                at = pem.index(b"-----BEGIN CERTIFICATE")
                credentials = grpc.ssl_channel_credentials(ca, pem[:at], pem[at:])
            found = self.channels[port, caller] = grpc.secure_channel(self.ports[port], credentials, options)
        return found

    def serves(self, port: str, method: Method) -> bool:
        """Whether a port serves a method, asked by a caller whom the port does not know."""
        caller = "role-console" if port.endswith(" client") else "stranger"
        return self.call(port, caller, method, within_s=REFUSAL_S) != "absent"

    def call(
        self, port: str, caller: str, method: Method, text: str = "", named: str = "", within_s: float = CALL_S
    ) -> str:
        """Make a call: "refused", "unauthenticated", "absent" (the port does not serve it), or "let in". ``named``: the
        client for which a broker calls."""
        request = text_format.Parse(text, method.request())
        channel = self.channel(port, caller)
        metadata = [(PRINCIPAL_KEY, f"User:{named}"), (HOST_KEY, "127.0.0.1")] if named else []
        kinds = {(False, False): channel.unary_unary, (False, True): channel.unary_stream}
        kinds |= {(True, False): channel.stream_unary, (True, True): channel.stream_stream}
        rpc = kinds[method.is_stream, method.answers_stream](
            method.path,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=method.response.FromString,
        )
        try:
            if method.answers_stream:
                stream = rpc(iter([request]) if method.is_stream else request, timeout=within_s, metadata=metadata)
                answer = next(stream, None)
                stream.cancel()
            else:
                answer = rpc(request, timeout=within_s, metadata=metadata)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""  # type: ignore[attr-defined]
            if code is grpc.StatusCode.UNAUTHENTICATED:
                return "unauthenticated"
            if code is grpc.StatusCode.PERMISSION_DENIED:
                return "refused"
            if code is grpc.StatusCode.UNIMPLEMENTED and "Method not found" in details:
                return "absent"
            return "let in"
        return "refused" if answer is not None and has_refusal(answer) else "let in"


def has_refusal(message: Any) -> bool:
    """Whether any Error in a message refuses the caller."""
    if message.DESCRIPTOR.name == "Error":
        return message.code in REFUSALS
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        if any(has_refusal(each) for each in (value if descriptor.is_repeated else (value,))):
            return True
    return False


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Every node has a listener ``client`` with certificates, and a listener ``clientsasl`` with logins."""
    of_nodes = nodes.properties

    def with_two(state: Any, node: Any, directory: Path) -> dict[str, str]:
        values = of_nodes(state, node, directory)
        if node.role in ("broker", "coordinator"):
            values["listeners"] += ",clientsasl://127.0.0.1:0"
        return values

    config = {
        "listener.security.protocol.map": "client:SSL,clientsasl:SASL_SSL,internal:SSL,kafka:SASL_SSL",
        "listener.name.client.ssl.client.auth": "required",
        "listener.name.clientsasl.ssl.client.auth": "none",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:CN=root;User:root;User:admin;User:CN=admin",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "properties", with_two)
        with LocalCluster(
            brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess", secure=True, config=config
        ) as cluster:
            security = cluster.directory / "security"
            authority = Authority(security)
            for name in ("root", "stranger", "member"):
                pem = authority.issue(Subject(USER, name)).path
                if pem != security / f"{name}.pem":
                    (security / f"{name}.pem").write_bytes(pem.read_bytes())
            for role in ROLES:
                pem = authority.issue(Subject(role, "77")).path
                (security / f"role-{role}.pem").write_bytes(pem.read_bytes())
            ports = {}
            for path in sorted(cluster.directory.glob("*/node.json")):
                node = path.parent.name.rpartition("-")[0]
                for name, address in json.loads(path.read_text())["listeners"].items():
                    ports[f"{node} {name}"] = address
            found = World(cluster.directory, ports)
            yield found
            for channel in found.channels.values():
                channel.close()


def ports_of(world: World, listener: str) -> list[str]:
    return [port for port in world.ports if port.endswith(f" {listener}")]


def grant(world: World, rights: tuple[str, ...], *, is_removed: bool = False) -> None:
    """Allow User:member exactly these rights, or take them away."""
    for right in rights:
        operation, kind, name = right.split(" ")
        entry = {
            "resource_type": ResourceType[kind],
            "resource_name": name,
            "pattern_type": PatternType.LITERAL,
            "principal": PRINCIPAL,
            "host": "*",
            "operation": Operation[operation],
            "permission": Permission.ALLOW,
        }
        if is_removed:
            request: Any = security_pb2.DeleteAclsRequest(filters=[security_pb2.AclFilter(**entry)])  # type: ignore[arg-type]
            method = METHODS["Security/DeleteAcls"]
        else:
            request = security_pb2.CreateAclsRequest(entries=[security_pb2.AclEntry(**entry)])  # type: ignore[arg-type]
            method = METHODS["Security/CreateAcls"]
        call = world.channel("broker client", "root").unary_unary(
            method.path,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=method.response.FromString,
        )
        answer = call(request, timeout=10)
        assert not any((each.error if is_removed else each).code for each in answer.results), answer


PRINCIPAL = "User:member"


def test_every_method_has_rules_and_an_expectation() -> None:
    assert [name for name, method in METHODS.items() if access_of(method.path) is None] == []
    assert set(METHODS) == set(RIGHTS) | set(NODES) | OPEN


#: The port at which a broker calls for a client of Kafka's protocol, which it names.
FOR_BROKERS = "coordinator internal"
#: Requests of calls, each with the rights that it needs: every call, and further kinds of requests.
REQUESTS = [*((name, rights, text) for name, (rights, text) in RIGHTS.items()), *VARIANTS]


def ask(world: World, port: str, caller: str, method: Method, text: str, within_s: float = CALL_S) -> str:
    """The outcome of a client's call at a port for clients, or of a broker's call for this client."""
    if port == FOR_BROKERS:
        return world.call(port, "role-broker", method, text, named=caller, within_s=within_s)
    return world.call(port, caller, method, text, within_s=within_s)


def test_clients_are_refused_without_each_single_right_and_let_in_with_all(world: World) -> None:
    """Without any right, with all rights but one, with exactly the rights, and as a super user: at the ports for
    clients, and at a coordinator's port for nodes when a broker names the client."""
    seen: dict[tuple[str, str, str, str], str] = {}
    wanted: dict[tuple[str, str, str, str], str] = {}
    served: dict[str, set[str]] = {"client": set(), "internal": set()}
    for name, rights, text in REQUESTS:
        method = METHODS[name]
        for port in [*ports_of(world, "client"), FOR_BROKERS]:
            if not world.serves(port, method):
                continue
            served[port.rpartition(" ")[2]].add(name)
            seen[name, text, port, "super"] = ask(world, port, "root", method, text)
            wanted[name, text, port, "super"] = "let in"
            within_s = REFUSAL_S if rights else CALL_S
            seen[name, text, port, "stranger"] = ask(world, port, "stranger", method, text, within_s)
            wanted[name, text, port, "stranger"] = "refused" if rights else "let in"
    for name, rights, text in REQUESTS:
        method = METHODS[name]
        here = [port for port in world.ports if (name, text, port, "super") in seen]
        for missing in range(len(rights)) if len(rights) > 1 else ():
            some = tuple(right for index, right in enumerate(rights) if index != missing)
            grant(world, some)
            for port in here:
                key = name, text, port, f"without {rights[missing]}"
                seen[key], wanted[key] = eventually(world, port, method, text, "refused"), "refused"
            grant(world, some, is_removed=True)
        if rights:
            grant(world, rights)
            for port in here:
                key = name, text, port, "with the rights"
                seen[key], wanted[key] = eventually(world, port, method, text, "let in"), "let in"
            grant(world, rights, is_removed=True)
    assert served["client"] == set(RIGHTS)
    assert served["internal"] >= {name for name in RIGHTS if name.startswith(("Groups/", "Transactions/"))}
    assert {key: value for key, value in seen.items() if value != wanted[key]} == {}


def eventually(world: World, port: str, method: Method, text: str, wanted: str) -> str:
    """The call's outcome once the node has applied the ACLs: the broker has, other nodes follow within milliseconds."""
    for _ in range(200):
        outcome = ask(world, port, "member", method, text)
        if outcome == wanted:
            break
    return outcome


def test_ports_for_clients_know_no_nodes_and_only_a_broker_names_a_client(world: World) -> None:
    """A client without a login, nodes at the ports for clients, and users and other nodes that name a client."""
    seen: dict[tuple[str, str, str], str] = {}
    for name, method in METHODS.items():
        text = RIGHTS[name][1] if name in RIGHTS else ""
        if name in OPEN:
            continue
        for listener, callers in (
            ("clientsasl", (ANONYMOUS, "root", "role-broker")),
            ("client", tuple(f"role-{role}" for role in ROLES)),
            ("internal", ("stranger", "root", *(f"role-{role}" for role in ROLES))),
        ):
            for port in ports_of(world, listener):
                for caller in callers:
                    if (port, caller) == (FOR_BROKERS, "role-broker"):
                        continue
                    named = "root" if listener == "internal" else ""
                    outcome = world.call(port, caller, method, text, named, REFUSAL_S)
                    if outcome == "absent":
                        break
                    seen[name, port, caller] = outcome
    assert len(seen) > 800
    assert {key: value for key, value in seen.items() if value != "unauthenticated"} == {}
    nodes_only = set(NODES) - set(RIGHTS)
    open_to_clients = {(name, port) for name, port, _ in seen if name in nodes_only and not port.endswith(" internal")}
    assert open_to_clients == set(), "only internal ports serve these"


def test_internal_ports_take_each_call_from_its_roles_only(world: World) -> None:
    seen: dict[tuple[str, str, str], str] = {}
    wanted: dict[tuple[str, str, str], str] = {}
    for name, method in METHODS.items():
        for port in ports_of(world, "internal"):
            if not world.serves(port, method):
                continue
            for caller in ("stranger", "root"):
                seen[name, port, caller] = world.call(port, caller, method, within_s=REFUSAL_S)
                wanted[name, port, caller] = "unauthenticated"
            for role in ROLES:
                allowed = role in NODES.get(name, set())
                text = NAMED.get(name) or NAMED_BY_ROLE.get(name, {}).get(role, "")
                if allowed and text:
                    seen[name, port, f"another {role}"] = world.call(
                        port, f"role-{role}", method, text.replace("77", "1"), within_s=REFUSAL_S
                    )
                    wanted[name, port, f"another {role}"] = "refused"
                if allowed and name in DISTURBING:
                    continue
                within_s = CALL_S if allowed else REFUSAL_S
                seen[name, port, role] = world.call(port, f"role-{role}", method, text, within_s=within_s)
                wanted[name, port, role] = "let in" if allowed else "refused"
    assert len(seen) > 300
    assert {key: value for key, value in seen.items() if value != wanted[key]} == {}


#: Calls that an allowed caller cannot make with an empty request and leave the cluster as it is.
DISTURBING = {"Raft/Exchange", "Admin/TransferLeadership"}
