"""Each value of the chart has a comment and a type, and refers to something that exists."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from berth_agent.configuration.options import VARIABLES
from berth_agent.configuration.settings import Settings
from tests.programs.chart import CHART

KUBERNETES = {"resources", "securityContext", "updateStrategy", "tolerations", "addedKeys"}
"""Values whose parts are those of Kubernetes."""
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_every_value_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare = [
        line for line, above in zip(lines[1:], lines, strict=False) if is_value(line) and not explained(line, above)
    ]
    parts_of_kubernetes = re.compile(
        r" {4,6}(requests|limits|rollingUpdate|\w*[pP]rivilege\w*|\w*[rR]oot\w*|runAs\w+|cap.*|seccomp.*):"
    )
    assert [line for line in bare if not parts_of_kubernetes.match(line)] == []


def is_value(line: str) -> bool:
    return re.match(r" *[A-Za-z]+:", line) is not None


def explained(line: str, above: str) -> bool:
    return "#" in line or above.strip().startswith("#")


def test_every_value_has_a_type_and_no_type_is_left_over() -> None:
    differing = list(differences(VALUES, SCHEMA, "values"))
    assert differing == []


def differences(values: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    while "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "properties" not in schema:
        return
    if schema["additionalProperties"] is not False:
        yield f"{path}: other names are allowed"
    yield from (f"{path}.{name}" for name in (schema["properties"].keys() ^ values.keys()) - {"global"})
    for name, value in values.items():
        if isinstance(value, dict) and name not in KUBERNETES:
            yield from differences(value, schema["properties"].get(name, {}), f"{path}.{name}")


def test_the_options_of_nvidias_plugin_are_those_of_the_agent() -> None:
    template = (CHART / "templates/agent.yaml").read_text()
    variables = set(re.findall(r'\(list "([A-Z_]+)"', template))
    own = {name for name in variables if name.startswith("BERTH_AGENT_")}
    assert {name.removeprefix("BERTH_AGENT_").lower() for name in own} <= Settings.model_fields.keys()
    assert variables - own == {
        *("MIG_STRATEGY", "FAIL_ON_INIT_ERROR", "DEVICE_LIST_STRATEGY", "DEVICE_ID_STRATEGY", "PASS_DEVICE_SPECS"),
        *("NVIDIA_DRIVER_ROOT", "GDRCOPY_ENABLED", "GDS_ENABLED", "MOFED_ENABLED", "CONFIG_FILE"),
    }
    assert variables - own <= VARIABLES.keys()
