"""The comparison of other clients' test suites: which tests are named, and which results fail."""

from __future__ import annotations

import json

import pytest
from suite_results import (
    SuiteError,
    compared,
    leaves,
    nameable,
    outcomes_of_go,
    outcomes_of_junit,
    parse_explanations,
)

MODULE = "example.org/client"


def go_line(action: str, test: str | None, package: str = MODULE) -> str:
    return json.dumps({"Action": action, "Package": package, **({"Test": test} if test else {})})


def test_tests_that_kafka_passes_twice_and_that_need_a_server_are_named() -> None:
    first = {"steady": "passed", "flaky": "passed", "old": "failed", "pure": "passed", "skips": "skipped"}
    second = {**first, "flaky": "failed"}
    without = {"steady": "failed", "pure": "passed"}
    assert nameable([first, second], without) == ["steady"]


def test_a_named_test_that_fails_or_does_not_run_needs_an_explanation() -> None:
    named = ["a", "b", "c", "d"]
    found = compared(named, {"a": "passed", "b": "failed", "c": "skipped"}, {"b": "SASL is not served"})
    assert found.passed == ("a",)
    assert found.failed == {"c": "skipped", "d": "did not run"}
    assert found.explained == {"b": "SASL is not served"}
    assert not found.is_good


def test_a_run_is_good_when_each_difference_is_explained() -> None:
    assert compared(["a", "b"], {"a": "passed", "b": "failed"}, {"b": "why"}).is_good


def test_an_explanation_of_a_test_that_passes_or_is_not_named_is_outdated() -> None:
    found = compared(["a"], {"a": "passed"}, {"a": "why", "gone": "why"})
    assert found.outdated == ("a", "gone")
    assert not found.is_good


def test_tests_outside_of_the_names_do_not_count() -> None:
    found = compared(["a"], {"a": "passed", "other": "failed"}, {})
    assert (found.passed, found.is_good) == (("a",), True)


def test_go_outcomes_have_the_package_and_keep_tests_that_did_not_end() -> None:
    lines = [
        "# a line of the compiler",
        go_line("start", None),
        go_line("run", "TestWrite"),
        go_line("output", "TestWrite"),
        go_line("pass", "TestWrite"),
        go_line("run", "TestRead"),
        go_line("fail", "TestRead"),
        go_line("run", "TestList", f"{MODULE}/topics"),
        go_line("skip", "TestList", f"{MODULE}/topics"),
        go_line("run", "TestPanics"),
        go_line("run", "ExampleWriter"),
        go_line("fail", None),
    ]
    assert outcomes_of_go(lines, MODULE) == {
        "TestWrite": "passed",
        "TestRead": "failed",
        "topics:TestList": "skipped",
        "TestPanics": "did not end",
    }


def test_a_go_test_with_subtests_counts_once_for_each_innermost_subtest() -> None:
    outcomes = {"TestConn": "passed", "TestConn/a": "passed", "TestConn/a/b": "passed", "TestConn/c": "failed"}
    assert leaves({**outcomes, "TestReader": "passed"}) == {
        "TestConn/a/b": "passed",
        "TestConn/c": "failed",
        "TestReader": "passed",
    }


def test_junit_outcomes_have_the_file_and_count_errors_of_fixtures() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="test.integration.test_admin" name="test_list"/>
        <testcase classname="test.integration.test_admin" name="test_acls"><failure message="x"/></testcase>
        <testcase classname="test.integration.test_admin" name="test_setup"><error message="x"/></testcase>
        <testcase classname="test.integration.test_sasl" name="test_login[PLAIN]"><skipped/></testcase>
        </testsuite></testsuites>"""
    assert outcomes_of_junit(report) == {
        "test_admin::test_list": "passed",
        "test_admin::test_acls": "failed",
        "test_admin::test_setup": "failed",
        "test_sasl::test_login[PLAIN]": "skipped",
    }


def test_explanations_belong_to_a_suite_and_say_something() -> None:
    text = "# how to read this\nkafka-go TestConn/a: not served\nkafka-python test_admin::test_b: differs\n"
    assert parse_explanations(text, "kafka-go") == {"TestConn/a": "not served"}
    with pytest.raises(SuiteError, match="does not explain TestConn/a"):
        parse_explanations("kafka-go TestConn/a:\n", "kafka-go")
