"""Values survive conversion to text, and invalid text raises InvalidConfigError and nothing else."""

from __future__ import annotations

import contextlib
import math
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_core.config import INT_MAX, LONG_MAX, VALUE_CHARACTERS_SHOWN, ConfigDef, ConfigKey, Kind, Status
from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.config.server_keys import SERVER
from headrace_core.config.topic_keys import TOPIC
from headrace_core.errors import InvalidConfigError
from headrace_core.log.config import LogConfig
from headrace_core.node.config import NodeConfig
from headrace_core.node.properties import Properties, format_properties, parse_properties
from tests.worlds.this_process import examples

DEFINITIONS = (TOPIC, SERVER, PRODUCER, CONSUMER, ADMIN)
RUNS = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])

definitions = st.sampled_from(DEFINITIONS)
plain_text = st.text(string.ascii_letters + string.digits + "._-:/", min_size=1, max_size=12)
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=40),
    st.text("0123456789.-+einfNa_ \u0663\u00b2", max_size=20),
    st.just("9" * 5_000),
    st.binary(max_size=20),
    st.lists(st.text(max_size=5), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just(object()),
)
#: Names that are nearly right, names of other components, and names that do not exist.
names = st.one_of(
    st.sampled_from(sorted({name for definition in DEFINITIONS for name in definition.keys})),
    st.sampled_from(sorted({f"{family}x.y" for definition in DEFINITIONS for family in definition.families})),
    st.sampled_from(sorted({name for definition in DEFINITIONS for name in definition.keys})).map(
        lambda name: name[:-1]
    ),
    st.sampled_from(sorted(SERVER.keys)).map(lambda name: name.replace(".", "_")),
    st.text(max_size=30),
    st.just("x" * 100_000),
)


def values_of(key: ConfigKey) -> st.SearchStrategy[Any]:
    """Values that are legal by the declaration of a key."""
    if key.status is Status.REFUSED or key.kind is Kind.CLASS:
        return st.just(key.default)
    if key.kind is Kind.BOOLEAN:
        return st.booleans()
    if key.kind in (Kind.INT, Kind.LONG):
        widest = INT_MAX if key.kind is Kind.INT else LONG_MAX
        return st.integers(int(-widest if key.low is None else key.low), int(widest if key.high is None else key.high))
    if key.kind is Kind.DOUBLE:
        high = None if key.high is None else float(key.high)
        if high is not None and key.high is not None and high > key.high:  # a Long.MAX_VALUE is no float
            high = math.nextafter(high, 0)
        return st.floats(min_value=key.low, max_value=high, allow_nan=False)
    if key.kind is Kind.LIST:
        return st.lists(st.sampled_from(key.choices) if key.choices else plain_text, max_size=4)
    return st.sampled_from(key.choices) if key.choices else plain_text


@st.composite
def key_and_value(draw: st.DrawFn) -> tuple[ConfigKey, Any]:
    definition: ConfigDef = draw(definitions)
    key = draw(st.sampled_from(sorted(definition.keys.values(), key=lambda key: key.name)))
    return key, draw(values_of(key))


@RUNS
@given(key_and_value())
def test_a_value_survives_its_text(made: tuple[ConfigKey, Any]) -> None:
    key, value = made
    try:
        parsed = key.parse(value)
    except InvalidConfigError:
        assert key.check is not None, "a value within its bounds is refused, and no check says why"
        return
    if key.kind is not Kind.CLASS:
        assert key.parse(key.format(parsed)) == parsed
        assert key.format(key.parse(key.format(parsed))) == key.format(parsed)


@RUNS
@given(definitions, names, junk)
def test_junk_is_a_value_or_an_invalid_configuration(definition: ConfigDef, name: str, value: Any) -> None:
    refusal = ""
    try:
        parsed = definition.parse({name: value}, defaults=False)
    except InvalidConfigError as error:
        refusal = error.message
    if refusal:
        assert len(refusal) < 4 * VALUE_CHARACTERS_SHOWN + 1_000  # an error does not repeat a long value completely
        return
    ((found, typed),) = parsed.items()
    key = definition.key(found)
    if key.low is not None and key.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE) and key.status is not Status.REFUSED:
        assert key.low <= typed
    definition.notes(parsed)


@RUNS
@given(st.dictionaries(names, st.text(max_size=20), max_size=6), st.sampled_from(["broker", "controller"]))
def test_a_nodes_file_of_junk_is_a_configuration_or_an_invalid_one(properties: dict[str, str], role: str) -> None:
    try:
        config = NodeConfig.from_properties(properties | {"log.dirs": "/d"}, role=role)
    except InvalidConfigError:
        return
    config.notes()
    LogConfig.from_topic({}, broker_defaults=config.topic_defaults())


@RUNS
@given(st.dictionaries(names, junk, max_size=4))
def test_a_topic_of_junk_is_a_log_or_an_invalid_configuration(given_: dict[str, Any]) -> None:
    try:
        config = LogConfig.from_topic(given_)
    except InvalidConfigError:
        return
    assert config.segment_bytes >= 14


@RUNS
@given(st.text(max_size=300))
def test_a_file_of_anything_is_properties_or_invalid(text: str) -> None:
    refusal = ""
    try:
        properties = parse_properties(text, where="f")
    except InvalidConfigError as error:
        refusal = error.message
    assert refusal.startswith("f, line ") if refusal else set(properties.set_in) == set(properties)


key_names = st.text(string.ascii_lowercase + ".", min_size=1, max_size=10)
property_values = st.text(string.ascii_letters + string.digits + " =:,/{}$\\", max_size=20).map(str.strip)


@RUNS
@given(st.dictionaries(key_names, property_values, max_size=5))
def test_properties_survive_their_file(values: dict[str, str]) -> None:
    plain = {key: value for key, value in values.items() if "\\" not in value}
    read = parse_properties(format_properties(plain), where="f")
    assert read == plain
    assert {read.set_in[key] for key in plain} == {f"f, line {number}" for number in range(1, len(plain) + 1)}


@RUNS
@given(st.dictionaries(key_names, plain_text, max_size=4), st.dictionaries(key_names, plain_text, max_size=4))
def test_what_overrides_keeps_its_own_place(below: dict[str, str], above: dict[str, str]) -> None:
    merged = Properties(below, set_in=dict.fromkeys(below, "file")).overridden_by(
        Properties(above, set_in=dict.fromkeys(above, "-o"))
    )
    assert merged == {**below, **above}
    assert all(merged.set_in[key] == ("-o" if key in above else "file") for key in merged)


_OF_EVERY_TYPE: tuple[Any, ...] = (None, True, -1, 0, 2**63, 1.5, float("nan"), "", "x", b"x", [], ["x"], {}, {"x": 1})


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_each_key_takes_or_refuses_a_value_of_each_type(definition: ConfigDef) -> None:
    """A random run found a check that failed with AttributeError for None: one key and one value of thousands."""
    for name in definition.keys:
        for value in _OF_EVERY_TYPE:
            with contextlib.suppress(InvalidConfigError):
                definition.parse({name: value}, defaults=False)
