"""Expressions whose results are compared. GPU, NIC and CAP stand for the usual beginnings of expressions."""

from typing import Final

_SHORT: Final = {
    "GPU": 'device.attributes["gpu.example.com"]',
    "NIC": 'device.attributes["nic.example.com"]',
    "CAP": 'device.capacity["gpu.example.com"]',
}

_ATTRIBUTES: Final = """
GPU.model == "H100"
GPU.model != "H100"
GPU.model == 'A100-SXM4'
GPU.model in ["H100", "H200"]
GPU["model"] == "H100"
GPU.healthy
!GPU.healthy
GPU.healthy == true
GPU.healthy == "true"
GPU.index == 0
GPU.index == 0u
GPU.index == 0.0
GPU.index < 2
GPU.index >= 1 && GPU.index < 100
GPU.index < 1.5
GPU.index < 2u
GPU.index < "a"
GPU.index + 1 > 0
GPU.index - 1 < 0
GPU.index * 2 == 84
GPU.index / 2 == 21
GPU.index % 2 == 0
-GPU.index < 0
GPU.index / 0 == 1
GPU.model + "x" == "H100x"
GPU.model + 1 == "H1001"
GPU.missing == "x"
GPU.missing != "x"
GPU.missing
has(GPU.missing)
has(GPU.model)
!has(GPU.model) || GPU.model == "H100"
has(GPU.model) && GPU.model.startsWith("A100")
has(device.attributes.missing)
has(GPU.model.deeper)
has(GPU.missing.deeper)
"model" in GPU
"missing" in GPU
"gpu.example.com" in device.attributes
"unknown.example.com" in device.attributes
device.attributes["unknown.example.com"].x == 1
has(device.attributes["unknown.example.com"].x)
size(device.attributes["unknown.example.com"]) == 0
size(device.attributes) == 1
device.attributes.size() == 3
size(GPU) == 4
GPU == {}
device.attributes["unknown.example.com"] == {}
device.attributes == {}
device.attributes.exists(d, d == "nic.example.com")
device.attributes.all(d, d.endsWith(".com") || d == "resource.kubernetes.io")
GPU.exists(name, name == "model")
GPU.all(name, name != "span")
GPU.exists(name, GPU[name] == "H100")
GPU.exists_one(name, name.startsWith("m"))
GPU.existsOne(name, name.startsWith("h"))
GPU.all(k, v, k != "model" || v == "H100")
GPU.exists(k, v, v == 42)
GPU.exists_one(k, v, v == true)
device.attributes.exists(d, m, "pcieRoot" in m)
device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:16"
device.attributes[device.driver].model == "ConnectX-7"
device.attributes[device.driver].index == 1
device.attributes[GPU.model].x == 1
device.attributes["gpu.example" + ".com"].model == "H100"
NIC.speed >= 400
NIC.speed > 100 && NIC.speed < 300
NIC.numa == -1
device.driver == "gpu.example.com"
device.driver != "gpu.example.com"
device.driver.startsWith("gpu.")
device.driver in ["a", "nic.example.com"]
device.allowMultipleAllocations
device.allowMultipleAllocations == true
!device.allowMultipleAllocations
device.missing == 1
device["driver"] == "x"
device
device == device
device.attributes == device.attributes
device.attributes.gpu == 1
GPU
GPU.model
GPU.index
GPU.driverVersion
type(GPU.model) == string
type(GPU.index) == int
type(GPU.healthy) == bool
type(GPU) == map
type(device.attributes) == map
dyn(GPU.index) == 1
GPU.model == null
GPU.missing == null
GPU.model > "A"
GPU.model <= "H100"
GPU.healthy < true
GPU.healthy > 0
GPU.model.name == 1
GPU.index[0] == 1
GPU.model[0] == "H"
GPU?.model == 1
GPU.?model == optional.of("H100")
GPU.?model.orValue("none") == "none"
GPU.?missing.hasValue()
GPU.?missing[GPU.nothing].hasValue()
GPU.?missing[?GPU.nothing].hasValue()
GPU.?index.hasValue() && GPU.?index.value() == 0
GPU.?missing.value() == 1
GPU[?"model"].orValue("") == "H100"
device.attributes[?"unknown.example.com"].hasValue()
device.attributes.?unknown.hasValue()
device.attributes[?"gpu.example.com"].model.orValue("x") == "H100"
device.attributes[?"gpu.example.com"].?missing.orValue("x") == "x"
GPU.?missing.or(GPU.?model).orValue("none") == "H100"
GPU.?model.optMap(m, m + "!").orValue("") == "H100!"
GPU.?model.optFlatMap(m, GPU.?index).orValue(7) == 7
optional.none().hasValue()
optional.of(GPU.model).value() == "H100"
optional.ofNonZeroValue(GPU.model).hasValue()
optional.ofNonZeroValue(GPU.index).hasValue()
optional.ofNonZeroValue(CAP.multiprocessors).hasValue()
optional.ofNonZeroValue({}).hasValue()
optional.ofNonZeroValue(duration("0s")).hasValue()
optional.ofNonZeroValue(false).hasValue()
GPU.index == 9223372036854775807.0
GPU.index < 9223372036854775807.0
has(GPU.?model.x)
GPU.model.orValue("x") == "x"
[GPU.?model, GPU.?missing].unwrapOpt() == ["H100"]
optional.unwrap([GPU.?model]) == ["H100"]
[?GPU.?model, "x"].size() == 2
{?"m": GPU.?model} == {"m": "H100"}
cel.bind(gpu, GPU, gpu.model == "H100" && gpu.index == 0)
cel.bind(x, GPU.missing, true)
cel.bind(x, GPU.missing, x == 1 || true)
cel.bind(x, GPU.missing, x == 1)
cel.bind(x, 1/0, GPU.healthy || x == 1)
cel.bind(device, 1, device == 1)
bind(x, 1, x == 1)
cel.bind(1, 1, true)
"""

_LOGIC: Final = """
true
false
true && false
true || GPU.missing
GPU.missing || true
false && GPU.missing
GPU.missing && false
GPU.missing && true
GPU.missing || false
GPU.model || true
GPU.model && true
GPU.model && false
GPU.healthy ? GPU.index == 0 : GPU.index == 1
GPU.model ? true : false
GPU.missing ? true : true
true ? true : GPU.missing
true ? true : "a"
true ? GPU.index == 0 : 1
!true
!!GPU.healthy
!GPU.model
!!GPU.model
!"a"
--1 == 1
-(-1) == 1
1
"true"
null
[]
{}
[true][0]
[true, false][1]
[true][1]
{"a": true}["a"]
{"a": true}.a
{"a": true}.b
{1: true}[1]
{true: 1}[true] == 1
{"a": 1, "a": 2}.size() == 1
[1, "a"] == [1]
[1, 2u] == [1]
[dyn(1), dyn("a")] == [1]
[dyn(1), dyn(1.0), dyn(1u)].all(x, x == 1)
{"a": 1, "b": "c"} == {}
1 == 1.0
1 == dyn(1.0)
1 == "a"
dyn(1) == "a"
dyn(true) == 1
1 != dyn("a")
1 < 2u
1 < 1.5
2u > 1.5
"a" < "b"
b"a" < b"b"
true > false
[1] < [2]
null == null
null < null
1 + 1 == 2
1 + 1.0 == 2.0
1u + 1u == 2u
1u - 2u == 0u
"a" + "b" == "ab"
[1] + [2] == [1, 2]
[1] + ["a"] == [1]
9223372036854775807 + 1 > 0
-9223372036854775808 < 0
9223372036854775808 > 0
-9223372036854775808 - 1 < 0
9223372036854775807 * 2 > 0
-7 / 2 == -3
-7 % 2 == -1
7 % -2 == 1
1.0 / 0.0 > 1.0
5.5 % 2.0 == 1.5
0x10 == 16
0xFFu == 255u
1e3 == 1000.0
.5 == 0.5
1. == 1.0
1.5e400 > 0.0
"\\u00e9" == "é"
"\\x41" == "A"
"\\101" == "A"
"\\q" == "q"
r"\\q" == "\\\\q"
'''a"b''' == "a\\"b"
b"\\xff" == b"\\377"
"a
b" == "ab"
// a comment alone
true // a comment
true &&
&& true
(true
true)
true true
device..driver
a.b.c
undeclared == 1
undeclared(1) == 1
if == 1
{"if": true}.if
{"in": true}.in
.device.driver == "gpu.example.com"
1 in [1, 2]
3 in [1, 2]
"a" in {"a": 1}
1 in {1: 2}
1.0 in [1, 2]
dyn(1.0) in [1, 2]
dyn(1.0) in {1: 2}
dyn("a") in [1, 2]
"a" in "abc"
GPU.index in [0, 1]
GPU.model in GPU.model
GPU.driverVersion in [semver("550.54.15")]
GPU.driverVersion in ["550.54.15"]
GPU.driverVersion in ["550.54.15"] || true
dyn(b"a") in ["a"]
[dyn(1)] in [[dyn(1)]]
CAP.memory in [dyn("a")]
[1, 2, 3].all(x, x > 0)
[1, 2, 3].all(x, x > 1)
[1, 2, 3].exists(x, x == 2)
[1, 2, 3].exists_one(x, x > 2)
[1, 2, 3].map(x, x * 2) == [2, 4, 6]
[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]
[1, 2, 3].filter(x, x > 1) == [2, 3]
[1, 2, 3].all(x, 1 / (x - 2) < 5)
[1, 2, 3].exists(x, 1 / (x - 2) > 0)
[1, 2, 3].exists_one(x, 1 / (x - 2) > 0)
[1, 2].all(i, v, i == v - 1)
[1, 2].exists(i, v, i == 1 && v == 2)
[1, 2].transformList(i, v, i + v) == [1, 3]
[1, 2].transformList(i, v, v > 1, i + v) == [3]
[1, 2].transformMap(i, v, v * 2) == {0: 2, 1: 4}
{"a": 1}.transformMap(k, v, v + 1) == {"a": 2}
{"a": 1, "b": 2}.transformMap(k, v, v > 1, v) == {"b": 2}
{"a": 1}.transformMapEntry(k, v, {v: k}) == {1: "a"}
{"a": 1, "b": 1}.transformMapEntry(k, v, {v: k}) == {1: "a"}
{"a": 1}.map(k, k) == ["a"]
"abc".all(c, true)
[1].all(1, true)
[1].all(x, x)
[1].all(x, "a")
[GPU.model].all(x, x)
[].all(x, x > 1)
[[1], [2]].all(x, x.all(y, y > 0))
[1].map(x, [x].map(x, x + 1)) == [[2]]
[1].exists(__result__, true)
size([1, 2]) == 2
size("é") == 1
size(b"é") == 2
"abc".size() == 3
size(1) == 1
size(GPU.model) == 4
GPU.model.size() > 3
GPU.index.size() > 3
type(1) == int
type(int) == type
type(1) == type(2)
type("a") == type(1)
int == int
int("42") == 42
int("a") == 1
true || int("a") == 1
int(GPU.text) == 42
int(GPU.model) == 1
true || int(GPU.model) == 1
int(1.9) == 1
int(-1.9) == -1
int(1e30) == 1
int(3u) == 3
uint(3) == 3u
uint(-1) == 3u
double(3) == 3.0
double("1.5") == 1.5
double("inf") > 1.0
string(1) == "1"
string(1.5) == "1.5"
string(1.0) == "1"
string(1e21) == "1e+21"
string(0.00001) == "1e-05"
string(true) == "true"
string(b"abc") == "abc"
string(b"\\xff") == "abc"
string(GPU.index) + "x" == "0x"
string(GPU.model) == "H100"
string(null) == "null"
bool("true")
bool("T")
bool("yes")
bool(GPU.healthy)
bytes("abc") == b"abc"
duration("1h30m") == duration("90m")
duration(GPU.span) > duration("1h")
duration("x") == duration("1s")
duration("1h").getMinutes() == 60
duration("1.5s").getMilliseconds() == 500
string(duration("90m")) == "5400s"
timestamp("2026-01-02T03:04:05Z") < timestamp("2027-01-02T03:04:05+01:00")
timestamp(GPU.date).getFullYear() == 2026
timestamp(GPU.date).getMonth() == 0
timestamp(GPU.date).getDate() == 2
timestamp(GPU.date).getDayOfWeek() == 5
timestamp(GPU.date).getDayOfYear() == 1
timestamp(GPU.date).getDayOfMonth() == 1
timestamp(GPU.date).getHours() == 3
timestamp(GPU.date).getMinutes() == 4
timestamp(GPU.date).getSeconds() == 5
timestamp(GPU.date).getMilliseconds() == 678
timestamp(GPU.date) - timestamp("2026-01-02T00:00:00Z") < duration("4h")
timestamp(GPU.date) + duration("1h") > timestamp(GPU.date)
string(timestamp("2026-01-02T03:04:05.5Z")) == "2026-01-02T03:04:05.5Z"
timestamp("2026-13-02T03:04:05Z") == timestamp(0)
timestamp(0) == timestamp("1970-01-01T00:00:00Z")
int(timestamp("1970-01-01T00:01:00Z")) == 60
"""

_STRINGS: Final = """
GPU.model.contains("100")
GPU.model.startsWith("H")
GPU.model.endsWith("0")
GPU.index.contains("1")
GPU.model.contains(1)
GPU.model.matches("^[AH]100")
GPU.model.matches("(")
GPU.model.matches(GPU.list)
matches(GPU.model, "H.*")
"abc".matches("b")
"abc".matches(GPU.model)
"a(c".matches("(" + GPU.model)
GPU.model.find("[0-9]+") == "100"
GPU.model.find("(") == "100"
GPU.model.findAll("[0-9]") == ["1", "0", "0"]
GPU.model.findAll("[0-9]", 2) == ["1", "0"]
"abc".findAll("x*") == ["", "", "", ""]
"123 abc 456".findAll("[0-9]*") == ["123", "", "", "", "", "", "456"]
"123 abc 456".find("[0-9]*") == "123"
"baaab".findAll("a*") == ["", "aaa", ""]
"é1".find("[^0-9]") == "é"
GPU.model.charAt(0) == "H"
GPU.model.charAt(4) == ""
GPU.model.charAt(5) == ""
GPU.model.indexOf("0") == 2
GPU.model.indexOf("") == 0
"abcabc".indexOf("c", 3) == 5
"abc".indexOf("c", -1) == 2
"abc".indexOf("", 9) == 3
"abc".indexOf("a", 9) == -1
"abcabc".lastIndexOf("c") == 5
"abcabc".lastIndexOf("c", 4) == 2
"abc".lastIndexOf("c", 9) == -1
"abc".lastIndexOf("") == 3
"abc".lastIndexOf("abcd") == -1
"abc".lastIndexOf("bc", 2) == 1
GPU.model.lowerAscii() == "h100"
GPU.model.upperAscii() == "GRößE 42"
GPU.model.replace("0", "1") == "H111"
GPU.model.replace("0", "1", 1) == "H110"
"abc".replace("", "-") == "-a-b-c-"
"abc".replace("", "-", 2) == "-a-bc"
"abc".replace("b", "", 0) == "abc"
GPU.list.split(",") == ["b", "a", "", "c"]
GPU.list.split(",", 2) == ["b", "a,,c"]
GPU.list.split(",", 0) == []
GPU.list.split(",", -1).size() == 4
"abc".split("") == ["a", "b", "c"]
"abc".split("", 2) == ["a", "bc"]
"".split(",") == [""]
"".split("") == []
GPU.model.substring(1) == "100"
GPU.model.substring(1, 3) == "10"
GPU.model.substring(9) == ""
"abc".substring(2, 1) == ""
"abc".substring(0, 9) == "abc"
"abc".substring(3) == ""
"  a\\t".trim() == "a"
["a", "b"].join() == "ab"
["a", "b"].join("-") == "a-b"
[1].join() == "1"
[GPU.model, "x"].join("/") == "H100/x"
[GPU.index, 1].join("/") == "0/1"
strings.quote("a\\"b") == "\\"a\\\\\\"b\\""
"abc".reverse() == "cba"
"""

_LISTS: Final = """
[1, 2, 3].isSorted()
[2, 1].isSorted()
["a", "b"].isSorted()
[].isSorted()
[GPU.index, 1].isSorted()
[GPU.model, "I"].isSorted()
[[1]].isSorted()
[1, 2].sum() == 3
[1.5, 2.5].sum() == 4.0
[1u].sum() == 1u
["a"].sum() == "a"
[duration("1s"), duration("2s")].sum() == duration("3s")
[1, 3, 2].max() == 3
[1, 3, 2].min() == 1
["b", "a"].min() == "a"
[dyn(1)].filter(x, false).max() == 1
[GPU.index, 5].max() == 5
[1, 2, 1].indexOf(1) == 0
[1, 2, 1].lastIndexOf(1) == 2
[1, 2].indexOf(3) == -1
[GPU.model].indexOf("H100") == 0
[1, 2].includes(1)
[1, 2].includes("a")
GPU.model.includes("H100")
GPU.missing.includes("H100")
[GPU.model, GPU.index].includes(42)
[1, 2, 3].slice(0, 2) == [1, 2]
[1, 2].slice(0, 3) == [1, 2]
[1, 2].slice(-1, 1) == [1]
[1, 2].slice(2, 1) == [1]
[[1], [2, 3]].flatten() == [1, 2, 3]
[[1], [[2]]].flatten(2) == [1, 2]
[[[1]], [[2]]].flatten(2) == [1, 2]
[[1]].flatten(-1) == [1]
[1].flatten() == [1]
[3, 1, 2].sort() == [1, 2, 3]
["b", "a"].sort() == ["a", "b"]
[[1]].sort() == [[1]]
[dyn(1), dyn("a")].sort() == [1]
[3, 1, 2].sortBy(x, -x) == [3, 2, 1]
["bb", "a"].sortBy(x, x.size()) == ["a", "bb"]
GPU.list.split(",").sortBy(x, x)[1] == "a"
lists.range(3) == [0, 1, 2]
lists.range(0) == []
lists.range(-1) == []
[1, 2].reverse() == [2, 1]
[1, 2, 1, 2].distinct() == [1, 2]
[dyn(1), dyn(1.0)].distinct().size() == 1
[1, 2].first().value() == 1
[1, 2].last().orValue(9) == 2
[GPU.model].filter(x, x == "").first().hasValue()
[1, 2][?0].hasValue()
[1, 2][?5].hasValue()
[1, 2][?-1].hasValue()
[1, 2][-1] == 2
[1, 2][1.0] == 2
[1, 2][dyn(1.0)] == 2
[1, 2][dyn(1.5)] == 2
[1, 2][dyn("a")] == 2
{"a": 1}[?"b"].hasValue()
sets.contains([1, 2], [1])
sets.contains([1], [1, 2])
sets.contains([], [])
sets.equivalent([1, 2, 2], [2, 1])
sets.intersects([1], [2])
sets.intersects([1, 2], [2, 3])
sets.contains(["H100"], [GPU.model])
sets.contains([1], ["a"])
"""

_KUBERNETES: Final = """
CAP.memory.compareTo(quantity("80Gi")) == 0
CAP.memory.compareTo(quantity("80Gi")) >= 0
CAP.memory.isGreaterThan(quantity("40Gi"))
CAP.memory.isLessThan(quantity("40Gi"))
CAP.memory == quantity("80Gi")
CAP.memory == quantity("81920Mi")
CAP.memory != quantity("80Gi")
quantity("40G") == CAP.memory
CAP.memory > quantity("40Gi")
CAP.memory >= 1
CAP.memory == "80Gi"
CAP.memory == 1
dyn(CAP.memory) == "80Gi"
dyn(CAP.memory) != "80Gi"
dyn("80Gi") == CAP.memory
[dyn(CAP.memory)] == ["80Gi"]
dyn(CAP.memory) in [dyn("80Gi")]
CAP.missing.isGreaterThan(quantity("1"))
has(CAP.memory)
has(CAP.missing) && CAP.missing.isGreaterThan(quantity("1"))
"memory" in CAP
CAP.?memory.hasValue()
CAP.?memory.orValue(quantity("0")).isGreaterThan(quantity("1"))
device.capacity["nic.example.com"].bandwidth.compareTo(quantity("100000M")) == 0
device.capacity["unknown.example.com"].x == quantity("1")
device.capacity["other.example.com"].x.sign() == -1
sign(device.capacity["other.example.com"].x) == -1
size(device.capacity) == 1
CAP.multiprocessors.asInteger() == 132
CAP.multiprocessors.isInteger()
CAP.memory.asInteger() > 85000000000
CAP.memory.asInteger() % 2 == 0
CAP.memory.asApproximateFloat() > 1.0
CAP.memory.add(quantity("1Gi")) == quantity("81Gi")
quantity("81Gi") == CAP.memory.add(quantity("1Gi"))
CAP.memory.add(1).isGreaterThan(CAP.memory)
CAP.memory.sub(quantity("80Gi")) == quantity("0")
CAP.memory.sub(1).isLessThan(CAP.memory)
CAP.memory.add(quantity("1Gi")) == CAP.memory.add(quantity("1Gi"))
sign(CAP.memory) == 1
sign(CAP.multiprocessors) == 0
CAP.memory.add("1") == quantity("1")
quantity("1500m").isInteger()
quantity("1500m") == CAP.memory
quantity("1.5") == quantity("1500m")
quantity("0.1Ki") == quantity("102400m")
quantity("1e3") == quantity("1k")
quantity("1E") == quantity("1000P")
quantity("-1").isLessThan(quantity("0"))
quantity("1n").isGreaterThan(quantity("0"))
quantity("0.1n") == quantity("1n")
quantity("x") == quantity("1")
true || quantity("x") == quantity("1")
quantity(GPU.text).asInteger() == 42
quantity(GPU.model) == quantity("1")
quantity("") == quantity("0")
quantity("1 Gi") == quantity("1Gi")
isQuantity("1Gi")
isQuantity("1gi")
isQuantity(GPU.text)
isQuantity(GPU.index)
type(CAP.memory) == type(quantity("1"))
GPU.driverVersion.compareTo(semver("550.54.15")) == 0
GPU.driverVersion.isGreaterThan(semver("525.0.0"))
GPU.driverVersion.isLessThan(semver("550.54.15"))
GPU.driverVersion == semver("550.54.15")
GPU.driverVersion == semver("525.0.0-rc.1")
GPU.driverVersion != semver("550.54.15")
GPU.driverVersion == "550.54.15"
GPU.driverVersion != "550.54.15"
"550.54.15" == GPU.driverVersion
GPU.driverVersion.major() == 550
GPU.driverVersion.minor() == 54
GPU.driverVersion.patch() == 15
GPU.driverVersion > semver("1.0.0")
GPU.driverVersion < GPU.driverVersion
NIC.firmware.isGreaterThan(semver("28.39.1001"))
semver("1.0.0-alpha") == semver("1.0.0-alpha+b")
semver("1.0.0-alpha").isLessThan(semver("1.0.0"))
semver("1.0.0-alpha.1").isLessThan(semver("1.0.0-alpha.beta"))
semver("1.0.0-alpha").isLessThan(semver("1.0.0-alpha.1"))
semver("1.0.0-2").isLessThan(semver("1.0.0-10"))
semver("1.0.0-0a").isGreaterThan(semver("1.0.0-5"))
semver("v1.0", true) == semver("1.0.0")
semver("1", true) == semver("1.0.0")
semver("01.02.03", true) == semver("1.2.3")
semver("1.0-rc", true) == semver("1.0.0")
semver("v1.0") == semver("1.0.0")
semver("1.0") == semver("1.0.0")
semver("01.0.0") == semver("1.0.0")
semver("1.0.0-01") == semver("1.0.0")
semver("1.0.0+") == semver("1.0.0")
semver("99999999999999999999.0.0").major() == 1
semver("18446744073709551615.0.0").major() == -1
isSemver("1.0.0")
isSemver("v1.0.0")
isSemver("v1.0.0", true)
isSemver("v1", true)
isSemver("", true)
isSemver(GPU.driverVersion)
isSemver(GPU.model)
ip(NIC.ip).family() == 4
isIP(NIC.ip)
isIP(GPU.model)
ip(GPU.model).family() == 4
cidr("10.0.0.0/8").containsIP(NIC.ip)
cidr("10.0.0.0/8").containsIP(ip(NIC.ip))
cidr("10.0.0.0/8").containsIP("::1")
cidr("10.0.0.0/8").containsIP("11.0.0.1")
cidr("10.0.0.0/8").containsCIDR("10.0.0.0/7")
cidr("10.0.0.0/8").containsCIDR("11.0.0.0/16")
cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16")
cidr("10.0.0.0/8").containsCIDR(cidr("0.0.0.0/0"))
cidr("10.0.0.0/8").containsCIDR("::/0")
cidr("10.1.2.3/8").masked() == cidr("10.0.0.0/8")
cidr("10.1.2.3/8") == cidr("10.0.0.0/8")
cidr("10.1.2.3/8").ip() == ip("10.1.2.3")
cidr("10.1.2.3/8").prefixLength() == 8
isCIDR("10.0.0.0/33")
isCIDR("10.0.0.0/08")
isCIDR("10.0.0.0/255.0.0.0")
isCIDR("10.0.0.0")
isCIDR("fd00::/8")
string(cidr("10.1.2.3/8")) == "10.1.2.3/8"
string(ip("::0001")) == "::1"
ip.isCanonical("::0001")
ip.isCanonical("10.1.2.3")
ip("::ffff:10.1.2.3").family() == 6
ip("fe80::1%eth0").family() == 6
ip("127.0.0.1").isLoopback()
ip("::1").isLoopback()
ip("0.0.0.0").isUnspecified()
ip("169.254.1.1").isLinkLocalUnicast()
ip("224.0.0.1").isLinkLocalMulticast()
ip("ff02::1").isLinkLocalMulticast()
ip("ff12::1").isLinkLocalMulticast()
ip("10.0.0.1").isGlobalUnicast()
ip("255.255.255.255").isGlobalUnicast()
ip("fe80::1").isGlobalUnicast()
ip("fd00::1").isGlobalUnicast()
ip("010.0.0.1").family() == 4
dyn(ip("10.0.0.1")) == "10.0.0.1"
ip("10.0.0.1") == ip("10.0.0.1")
type(ip("10.0.0.1")) == net.IP
type(cidr("10.0.0.0/8")) == net.CIDR
"""


def expressions() -> list[str]:
    """Return all expressions of the tables."""
    lines = [
        line for table in (_ATTRIBUTES, _LOGIC, _STRINGS, _LISTS, _KUBERNETES) for line in table.strip().split("\n")
    ]
    return [_long(line) for line in lines]


def _long(line: str) -> str:
    for short, long in _SHORT.items():
        line = line.replace(short + ".", long + ".").replace(short + "[", long + "[").replace(f"({short})", f"({long})")
    return _SHORT.get(line, line)
