"""The operator's device plug-ins are loaded once. An invalid plug-in ends the start with a one-line message."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from berth_api.plugins import PluginError
from berth_operator.settings import device_plugins

GOOD = """
from berth_api.request import Kind
from berth_operator.core.plugins import DevicePlugin
plugin = DevicePlugin(kind=Kind(name={name!r}, resources={{{resource!r}: 1}}){more})
"""
Write = Callable[..., EntryPoint]


def source(name: str = "npu", resource: str = "example.com/npu", more: str = "") -> str:
    return GOOD.format(name=name, resource=resource, more=more)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.syspath_prepend(tmp_path)

    def made(module: str, text: str) -> EntryPoint:
        (tmp_path / f"{module}.py").write_text(text)
        return EntryPoint(name=module, value=f"{module}:plugin", group=device_plugins.GROUP)

    return made


def test_plug_ins_are_found_by_their_types(write: Write) -> None:
    entries = [write("berth_plugged_b", source("tpu", "example.com/tpu")), write("berth_plugged_a", source())]
    assert list(device_plugins.load(entries)) == ["npu", "tpu"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("import berth_no_such_module", "ModuleNotFoundError: No module named", id="import"),
        pytest.param("1 / 0", "berth_bad:plugin cannot be loaded: ZeroDivisionError: division by zero", id="raises"),
        pytest.param("raise ValueError('two\\nlines')", "ValueError: two lines", id="lines"),
        pytest.param("other = 1", "AttributeError: ", id="no such name"),
        pytest.param("plugin = 7", "it names 7; allowed is a berth_operator.core.plugins.", id="no plug-in"),
        pytest.param(source("NPU"), "KindError: name 'NPU'; allowed are up to 32 lower-case letters", id="declaration"),
        pytest.param(
            source("gpu"),
            "gpu belongs to Berth already; allowed is a name that no other plug-in uses",
            id="built-in type",
        ),
        pytest.param(
            source(resource="nvidia.com/gpu"), "nvidia.com/gpu belongs to Berth already", id="built-in resource"
        ),
        pytest.param(
            source(more=", allocator=object()"),
            "its allocator has no passes, could_pass, reasons, choose; needed are passes",
            id="allocator",
        ),
        pytest.param(source(more=", score=7"), "its score has no score; needed are score", id="score"),
    ],
)
def test_a_mistake_names_the_plug_in_and_what_is_allowed(write: Write, text: str, message: str) -> None:
    with pytest.raises(PluginError) as refused:
        device_plugins.load([write("berth_bad", text)])
    sys.modules.pop("berth_bad", None)
    assert message in str(refused.value)
    assert str(refused.value).startswith("plug-in berth_bad of an unknown distribution: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("second", "what"),
    [
        pytest.param(source(resource="example.com/other"), "npu", id="type"),
        pytest.param(source("other"), "example.com/npu", id="resource"),
    ],
)
def test_two_plug_ins_cannot_bring_the_same(write: Write, second: str, what: str) -> None:
    entries = [write("berth_first", source()), write("berth_second", second)]
    with pytest.raises(PluginError) as refused:
        device_plugins.load(entries)
    for module in ("berth_first", "berth_second"):
        sys.modules.pop(module, None)
    assert f"plug-in berth_second of an unknown distribution: {what} belongs to plug-in berth_first" in str(
        refused.value
    )


@pytest.mark.parametrize("side", ["operator", "agent"])
def test_a_broken_plug_in_ends_the_process_with_one_line_and_status_2(side: str, tmp_path: Path) -> None:
    group = {"operator": "berth.device_allocators", "agent": "berth.device_agents"}[side]
    installed = tmp_path / "berth_broken-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: berth-broken\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{group}]\nnpu = berth_broken_plugin:NPU\n")
    options = ["--node-name=a"] if side == "agent" else []
    command = [sys.executable, "-m", f"berth_{side}", *options]
    ended = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(
        f"berth-{side}: plug-in npu of berth-broken: berth_broken_plugin:NPU cannot be loaded"
    )


def test_the_test_suite_has_no_plug_ins_of_its_own() -> None:
    groups = (device_plugins.GROUP, "berth.device_agents")
    assert not [each for group in groups for each in entry_points(group=group)]
