"""Random expressions: templates for each type, whose gaps are filled with random expressions of the named type.

Some gaps get an expression of any type, as when users make mistakes.
"""

import random
import re
from collections.abc import Iterator
from typing import Final

_GPU: Final = 'device.attributes["gpu.example.com"]'
_NIC: Final = 'device.attributes["nic.example.com"]'

_TEMPLATES: Final[dict[str, list[str]]] = {
    "bool": [
        "{int} {order} {int}",
        "{int} {order} {double}",
        "{string} {order} {string}",
        "{any} == {any}",
        "{any} != {any}",
        "{dyn} == {any}",
        "{dyn} {order} {any}",
        "{bool} && {bool}",
        "{bool} || {bool}",
        "({bool} && {bool}) || {bool}",
        "!{bool}",
        "({bool}) ? {bool} : {bool}",
        "{any} in {strings}",
        "{int} in {ints}",
        "{name} in {attributes}",
        "{domain} in device.attributes",
        "has({field})",
        "has({field}) && {field} == {any}",
        "!has({field}) || {field} == {any}",
        "{string}.contains({string})",
        "{string}.startsWith({string})",
        "{string}.endsWith({string})",
        "{string}.matches({pattern})",
        "{dyn}.startsWith({string})",
        "{quantity}.isGreaterThan({quantity})",
        "{quantity}.isLessThan({quantity})",
        "{quantity} == {quantity}",
        "{semver}.isGreaterThan({semver})",
        "{semver}.isLessThan({semver})",
        "{semver} == {semver}",
        "{dyn}.isGreaterThan({semver})",
        "{dyn} == {semver}",
        "isSemver({string}, {bool})",
        "isQuantity({amount})",
        "{ints}.all(i, i {order} {int})",
        "{ints}.exists(i, i == {int})",
        "{ints}.exists_one(i, i % 2 == {int})",
        "{strings}.all(s, s {order} {string})",
        "{strings}.exists(i, s, s.contains({string}) || i == {int})",
        "{attributes}.exists(k, k == {string})",
        "{attributes}.all(k, v, v != {any})",
        "{ints}.isSorted()",
        "{strings}.includes({any})",
        "{optional}.hasValue()",
        "{optional} == {optional}",
        "sets.contains({ints}, {ints})",
        "sets.intersects({strings}, {strings})",
        "sets.equivalent({ints}, {ints})",
        "cel.bind(b, {bool}, b && {bool})",
        "cel.bind(d, {attributes}, d.healthy && d.model == {string})",
        "type({any}) == type({any})",
        "bool({string})",
        "isIP({string})",
        'cidr("10.0.0.0/8").containsIP({string})',
        "device.allowMultipleAllocations",
        "true",
        "false",
        "{dyn}",
    ],
    "int": [
        *("0", "1", "2", "-1", "42", "400", "9223372036854775807", "-9223372036854775808"),
        "({int} + {int})",
        "({int} - {int})",
        "({int} * {int})",
        "({int} / {int})",
        "({int} % {int})",
        "-{int}",
        "int({dyn})",
        "int({double})",
        "size({string})",
        "{strings}.size()",
        "size({attributes})",
        "{ints}.sum()",
        "{ints}.max()",
        "{ints}.min()",
        "{ints}.indexOf({int})",
        "{strings}.lastIndexOf({string})",
        "{string}.indexOf({string}, {int})",
        "{quantity}.compareTo({quantity})",
        "sign({quantity})",
        "{semver}.compareTo({semver})",
        "{semver}.major()",
        "{ints}[{int}]",
        "({bool} ? {int} : {int})",
        "cel.bind(n, {int}, n + n)",
    ],
    "double": ["0.0", "1.5", "-2.5", "1e30", "double({int})", "({double} + {double})", "({double} / {double})"],
    "string": [
        *('"H100"', '"A100"', '""', '"42"', '"1.2.3"', '"80Gi"', '"10.1.2.3"', '"true"', "'größe'", '"b,a,,c"'),
        "({string} + {string})",
        "string({dyn})",
        "string({int})",
        "device.driver",
        "{string}.upperAscii()",
        "{string}.lowerAscii()",
        "{string}.replace({string}, {string})",
        "{string}.substring({int})",
        "{string}.substring({int}, {int})",
        "{string}.charAt({int})",
        "{string}.trim()",
        "{string}.find({pattern})",
        "{strings}.join({string})",
        "{strings}[{int}]",
        "{optional}.orValue({string})",
        "({bool} ? {string} : {string})",
    ],
    "pattern": ['"[0-9]+"', '"^H"', '"a*"', '"0$"', '"(H|A)100"', '"("', '"."', '"\\\\d{2}"'],
    "ints": [
        "[]",
        "[{int}]",
        "[{int}, {int}, {int}]",
        "({ints} + {ints})",
        "{ints}.map(i, i * {int})",
        "{ints}.filter(i, i {order} {int})",
        "{strings}.map(s, s.size())",
        "{ints}.sort()",
        "{ints}.distinct()",
        "{ints}.reverse()",
        "{ints}.slice({int}, {int})",
        "lists.range(3)",
        "{strings}.transformList(i, s, i)",
    ],
    "strings": [
        '["H100", "A100"]',
        "[{string}, {string}]",
        "{string}.split({string})",
        '"b,a,,c".split(",", {int})',
        "{string}.findAll({pattern})",
        "{attributes}.map(k, k).sort()",
        "{strings}.sortBy(s, s.size())",
        "{strings}.filter(s, s != {string})",
        "{strings}.distinct()",
    ],
    "quantity": [
        *('quantity("80Gi")', 'quantity("40G")', 'quantity("1500m")', 'quantity("-1")', 'quantity("0")'),
        "quantity({amount})",
        "{capacity}.memory",
        "{capacity}[{name}]",
        "{quantity}.add({quantity})",
        "{quantity}.add(-1)",
        "{quantity}.sub({quantity})",
        "{quantity}.sub(2)",
    ],
    "amount": [
        '"80Gi"',
        '"1k"',
        '"-5"',
        '"0.5"',
        '"1e3"',
        '"Mo"',
        '"1 Gi"',
        '""',
        f"{_GPU}.text",
        f"{_GPU}.model",
        "{int}",
    ],
    "semver": [
        *('semver("550.54.15")', 'semver("1.2.3-rc.1")', 'semver("v1.2", true)', 'semver("1.2.3+b")'),
        "semver({string})",
        "semver({string}, {bool})",
        "semver({dyn})",
    ],
    "optional": [
        "{attributes}.?model",
        "{attributes}[?{name}]",
        "{attributes}.?missing",
        "device.attributes[?{domain}].model",
        "optional.of({any})",
        "optional.none()",
        "optional.ofNonZeroValue({any})",
        "{optional}.or({optional})",
        "{optional}.optMap(v, v)",
        "{attributes}.?healthy.optFlatMap(v, {optional})",
        "{strings}.first()",
        "{ints}[?{int}]",
    ],
    "dyn": [
        *(f"{_GPU}.{name}" for name in ("model", "index", "healthy", "driverVersion", "text", "list", "missing")),
        *(f"{_NIC}.{name}" for name in ("speed", "firmware", "ip")),
        "{attributes}.model",
        "{attributes}[{name}]",
        "dyn({any})",
    ],
    "field": [f"{_GPU}.model", f"{_GPU}.healthy", f"{_GPU}.missing", f"{_NIC}.speed", "device.attributes.missing"],
    "attributes": [_GPU, _NIC, "device.attributes[{domain}]"],
    "capacity": ['device.capacity["gpu.example.com"]', "device.capacity[{domain}]"],
    "domain": ['"gpu.example.com"', '"nic.example.com"', '"unknown.example.com"', "device.driver", "{string}"],
    "name": ['"model"', '"index"', '"missing"', '"memory"', "{string}"],
    "order": ["<", "<=", ">", ">=", "=="],
}
_ANY: Final = ("bool", "int", "double", "string", "ints", "strings", "quantity", "semver", "optional", "dyn", "dyn")
_VALUES: Final = frozenset(_ANY)
_GAP: Final = re.compile(r"\{([a-z]+)\}")
_MAX_DEPTH: Final = 4
_MISTAKES: Final = 0.03
_MAX_LENGTH: Final = 240


def random_expressions(seed: int) -> Iterator[str]:
    """Yield random expressions without end."""
    source = random.Random(seed)
    while True:
        expression = _Filler(source).filled("bool", 0)
        if len(expression) <= _MAX_LENGTH:
            yield expression


class _Filler:
    def __init__(self, source: random.Random) -> None:
        self._source = source

    def filled(self, kind: str, depth: int) -> str:
        """Return a random expression of a type."""
        if kind == "any" or (kind in _VALUES and self._source.random() < _MISTAKES):
            kind = self._source.choice(_ANY)
        templates = _TEMPLATES[kind]
        if depth >= _MAX_DEPTH:
            templates = [template for template in templates if not _GAP.search(template)] or templates
        return _GAP.sub(lambda gap: self.filled(gap[1], depth + 1), self._source.choice(templates))
