import re
import sys
from decimal import Decimal
from typing import Any

import pytest

from berth_operator.core.claims.selectors import (
    MAX_EXPRESSION,
    DeviceView,
    SelectorError,
    StepsError,
    compile_selector,
    parse_version,
)
from tests.claims.selectors_rows.rows import outcome, read, views

GPU = DeviceView(
    driver="gpu.example.com",
    attributes={"model": "H100", "driverVersion": parse_version("550.54.15"), "nic.example.com/speed": 400},
    capacity={"memory": Decimal(80 * 2**30)},
    allow_multiple_allocations=False,
)
MODEL = 'device.attributes["gpu.example.com"].model'
MANY = "1" * 5_000
TEN = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


def matches(expression: str, device: DeviceView = GPU) -> bool:
    return compile_selector(expression).matches(device)


def test_every_recorded_result_is_that_of_kubernetes() -> None:
    devices, recorded = views(), read()
    different = {row: (found, wanted) for row, wanted in recorded.items() if (found := outcome(row, devices)) != wanted}
    assert not different
    assert len(recorded) > 2_000


def test_numbers_with_many_zeros_are_read() -> None:
    zeros = "0" * 5_000
    assert matches(f'int("-{zeros}1") == -1 && duration("{zeros}1.5s") == duration("1500ms")')


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('device.attributes["gpu.example.com"].missing == 1', "no such key: missing"),
        (MODEL, "CEL result of type string could not be converted to bool"),
        ("'a'.matches(dyn(1))", "no such overload: matches(string, int)"),
        (f"{MODEL} < 1", "no such overload: _<_(string, int)"),
        (f'quantity({MODEL}) == quantity("1")', '"H100" is not a quantity such as 1, 500m or 16Gi'),
        ('semver("1") == semver("1.0.0")', '"1" is not a semantic version such as 1.2.3'),
        (f'semver("{MANY}.0.0").major() == 1', f'"{MANY}.0.0" is not a semantic version such as 1.2.3'),
        (f'["{MANY}"].exists(x, int(x) == 1)', "integer overflow"),
        (f'["{MANY}"].exists(x, uint(x) == 1u)', "unsigned integer overflow"),
        (f'["{MANY}h"].exists(x, duration(x) == duration("1h"))', "type conversion error from 'string' to '"),
    ],
)
def test_what_cannot_be_computed_is_an_error(expression: str, message: str) -> None:
    with pytest.raises(SelectorError, match=re.escape(message)):
        matches(expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1", "must evaluate to bool or the unknown type, not int"),
        ('1 == "a"', "found no matching overload for '_==_' applied to '(int, string)'"),
        ("devices.driver", "undeclared reference to 'devices'"),
        ("true &&", "syntax error at character 8: a name is expected, not the end"),
        ("true ; false", "syntax error at character 6: '; false' cannot be read"),
        ("device.name", "undefined field 'name'; device has allowMultipleAllocations, attributes, capacity, driver"),
        (f'{MODEL}.matches("(")', "invalid regular expression '('"),
        ('"%d".format([1]) == "1"', "Berth does not support the function 'format' in selectors"),
        ("9223372036854775808 > 0", "9223372036854775808 does not fit 64 bits"),
        (f"{MANY} > 0", f"{MANY[:64]} does not fit 64 bits"),
        (f"-{MANY}u > 0", f"{MANY[:64]} does not fit 64 bits"),
        (f'"{"a" * MAX_EXPRESSION}" == ""', f"the expression has more than {MAX_EXPRESSION} bytes"),
        ("(" * 100 + "true" + ")" * 100, "the expression is nested more than 60 levels deep"),
        ("device" + ".a" * 4000, "the expression is nested more than 120 levels deep"),
        ("1" + " + 1" * 500 + " == 1", "the expression is nested more than 120 levels deep"),
    ],
)
def test_what_does_not_compile_is_an_error(expression: str, message: str) -> None:
    with pytest.raises(SelectorError, match=re.escape(f"compilation failed: {message}")):
        compile_selector(expression)


@pytest.mark.parametrize(
    "expression",
    [
        f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, {TEN}.all(e, true)))))",
        "lists.range(5000).exists(a, a in lists.range(5000) && a < 0)",
        "lists.range(10000).distinct().size() == 10000",
        f"lists.range(5000).all(a, {' && '.join(['a == a'] * 500)})",
        "lists.range(5000).all(a, 'a'.matches('a' + string(a)) || true)",
        "lists.range(390).all(a, lists.range(400) == lists.range(400))",
        "[lists.range(9000).all(a, true), lists.range(9000).all(a, true)] == []",
    ],
)
def test_an_evaluation_is_bounded(expression: str) -> None:
    with pytest.raises(StepsError, match="the expression takes more than 10000 steps"):
        compile_selector(expression).evaluate(GPU, 10_000)


def test_no_operator_hides_that_the_bound_is_exceeded() -> None:
    with pytest.raises(StepsError):
        compile_selector("lists.range(10000).all(a, [1, 2].all(b, true)) || true").evaluate(GPU, 10_000)


@pytest.mark.parametrize(
    ("first", "doubled"),
    [("'abcdefgh'", "{0} + {0}"), ("dyn([1])", "dyn([{0}, {0}])"), ("dyn([1])", "dyn({{1: {0}, 2: {0}}})")],
    ids=["strings", "lists in lists", "maps in maps"],
)
def test_what_doubles_is_bounded(first: str, doubled: str) -> None:
    expression = "x0 == x0"
    for at in range(1, 40):
        expression = f"cel.bind(x{at - 1}, {doubled.format(f'x{at}')}, {expression})"
    with pytest.raises(SelectorError, match=r"the expression (takes more than|builds)"):
        matches(f"cel.bind(x39, {first}, {expression})")


def test_types_that_double_are_bounded() -> None:
    expression = "true"
    for at in range(1, 40):
        expression = f"cel.bind(x{at - 1}, {{x{at}: x{at}}}, {expression})"
    with pytest.raises(SelectorError, match="types are nested more than 12 levels deep"):
        compile_selector(f"cel.bind(x39, 1, {expression})")


def test_work_is_counted_for_each_device() -> None:
    selector = compile_selector("lists.range(2000).all(x, x >= 0)")
    assert [selector.evaluate(GPU, 10_000).steps for _ in range(3)] == [3 * 2_000] * 3


def test_a_view_groups_names_by_domain() -> None:
    explicit: dict[str, Any] = {"gpu.example.com/model": "H100"}
    assert matches(f'{MODEL} == "H100"', DeviceView("gpu.example.com", explicit, {}, allow_multiple_allocations=False))


def test_without_its_library_a_pattern_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(SelectorError, match=r"install berth-operator\[claims\]"):
        compile_selector(f'{MODEL}.matches("only here")')
    assert matches(f'{MODEL}.contains("H")')


def test_compiled_selectors_are_remembered() -> None:
    assert compile_selector("true") is compile_selector("true")
