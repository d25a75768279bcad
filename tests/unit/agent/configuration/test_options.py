import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_agent.__main__ import main
from berth_agent.configuration import options
from berth_agent.configuration.options import Options, OptionsError, Sharing
from berth_agent.configuration.settings import Settings

SLICING = {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}


@pytest.fixture
def load_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return options by file, variables and flags."""

    def load(*words: str, file: Any = None, **variables: str) -> Options:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        arguments = ["--node-name", "a", *words]
        if file is not None:
            path = tmp_path / "config.yaml"
            path.write_text(file if isinstance(file, str) else yaml.safe_dump(file))
            arguments += ["--config-file", str(path)]
        return options.load(Settings.read(arguments))

    return load


DEFAULTS = {
    "fail_on_init_error": True,
    "device_list_strategy": ("envvar",),
    "device_id_strategy": "uuid",
    "pass_device_specs": False,
    "nvidia_driver_root": "/",
    "dev_root": "/",
    "gdrcopy_enabled": False,
    "gds_enabled": False,
    "mofed_enabled": False,
    "cdi_annotation_prefix": "cdi.k8s.io/",
    "nvidia_ctk_path": "/usr/bin/nvidia-ctk",
    "container_driver_root": "/driver-root",
    "mps_root": "",
    "shared_devices_allocation_policy": "distributed",
    "device_discovery_strategy": "auto",
    "imex_channel_ids": (),
    "imex_required": False,
    "kubelet_socket": "/var/lib/kubelet/device-plugins/kubelet.sock",
    "config_file": None,
    "cdi_feature_flags": "",
    "cdi_disable_hooks": "",
    "mig_strategy": "mixed",
}
"""As NVIDIA's plugin has them, but for the strategy for MIG."""


def test_defaults_are_nvidias(load_options: Any) -> None:
    flags = load_options().flags
    assert {field: getattr(flags, field) for field in DEFAULTS} == DEFAULTS


ALL = [
    ("mig-strategy", "MIG_STRATEGY", "migStrategy", "single", "single"),
    ("fail-on-init-error", "FAIL_ON_INIT_ERROR", "failOnInitError", "false", False),
    ("nvidia-driver-root", "NVIDIA_DRIVER_ROOT", "nvidiaDriverRoot", "/run/nvidia/driver", "/run/nvidia/driver"),
    ("nvidia-dev-root", "NVIDIA_DEV_ROOT", "nvidiaDevRoot", "/dev-of", "/dev-of"),
    ("gdrcopy-enabled", "GDRCOPY_ENABLED", "gdrcopyEnabled", "true", True),
    ("gds-enabled", "GDS_ENABLED", "gdsEnabled", "true", True),
    ("mofed-enabled", "MOFED_ENABLED", "mofedEnabled", "true", True),
    ("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "deviceDiscoveryStrategy", "nvml", "nvml"),
    ("pass-device-specs", "PASS_DEVICE_SPECS", "plugin.passDeviceSpecs", "true", True),
    ("device-list-strategy", "DEVICE_LIST_STRATEGY", "plugin.deviceListStrategy", "cdi-cri", ("cdi-cri",)),
    ("device-id-strategy", "DEVICE_ID_STRATEGY", "plugin.deviceIDStrategy", "index", "index"),
    ("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX", "plugin.cdiAnnotationPrefix", "a.b/", "a.b/"),
    ("nvidia-ctk-path", "NVIDIA_CTK_PATH", "plugin.nvidiaCTKPath", "/ctk", "/ctk"),
    ("container-driver-root", "CONTAINER_DRIVER_ROOT", "plugin.containerDriverRoot", "/root", "/root"),
    (
        "shared-devices-allocation-policy",
        "SHARED_DEVICES_ALLOCATION_POLICY",
        "plugin.sharedDevicesAllocationPolicy",
        "packed",
        "packed",
    ),
]


def in_file() -> dict[str, Any]:
    """Return a file with all options."""
    flags: dict[str, Any] = {"plugin": {}}
    for _, _, key, value, _ in ALL:
        folder, _, name = key.rpartition(".")
        of = flags[folder] if folder else flags
        of[name] = yaml.safe_load(value) if value in {"true", "false"} else value
    return {"version": "v1", "flags": flags}


@pytest.mark.parametrize(
    ("words", "variables", "file"),
    [
        pytest.param([], {}, in_file(), id="file"),
        pytest.param([word for row in ALL for word in (f"--{row[0]}", row[3])], {}, None, id="flags"),
        pytest.param([f"--{row[0]}={row[3]}" for row in ALL], {}, None, id="flags with ="),
        pytest.param([], {row[1]: row[3] for row in ALL}, None, id="variables"),
        pytest.param([], {f"BERTH_AGENT_{row[1]}": row[3] for row in ALL}, None, id="variables of Berth"),
    ],
)
def test_options_come_by_flag_variable_and_file(
    words: list[str], variables: dict[str, str], file: Any, load_options: Any
) -> None:
    flags = load_options(*words, file=file, **variables).flags
    for flag, _, _, _, expected in ALL:
        assert getattr(flags, flag.replace("-", "_")) == expected, flag


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (["--driver-root", "/x"], "nvidia_driver_root", "/x"),
        (["--dev-root", "/x"], "nvidia_dev_root", "/x"),
        (["--nvidia-cdi-hook-path", "/x"], "nvidia_ctk_path", "/x"),
        (["--driver-root-ctr-path", "/x"], "container_driver_root", "/x"),
        (["--pass-device-specs"], "pass_device_specs", True),
        (["--pass-device-specs", "--driver-root", "/x"], "pass_device_specs", True),
        (["--pass-device-specs=false"], "pass_device_specs", False),
        (["--imex-channel-ids", "0"], "imex_channel_ids", (0,)),
        (["--imex-required"], "imex_required", True),
        (["--kubelet-socket", "/x/kubelet.sock"], "kubelet_socket", "/x/kubelet.sock"),
        (["--kubelet-socket="], "kubelet_socket", ""),
        (["--driver-root", "/x"], "dev_root", "/x"),
        (["--driver-root", "/x", "--dev-root", "/y"], "dev_root", "/y"),
        (
            ["--device-list-strategy", "envvar", "--device-list-strategy", "cdi-cri"],
            "device_list_strategy",
            ("envvar", "cdi-cri"),
        ),
        (["--device-list-strategy", "envvar, cdi-cri"], "device_list_strategy", ("envvar", "cdi-cri")),
    ],
)
def test_other_forms_of_flags(words: list[str], field: str, expected: Any, load_options: Any) -> None:
    assert getattr(load_options(*words).flags, field) == expected


@pytest.mark.parametrize(
    ("variables", "field", "expected"),
    [
        ({"NVIDIA_CDI_HOOK_PATH": "/x"}, "nvidia_ctk_path", "/x"),
        ({"DRIVER_ROOT_CTR_PATH": "/x"}, "container_driver_root", "/x"),
        ({"IMEX_CHANNEL_IDS": "0"}, "imex_channel_ids", (0,)),
        ({"IMEX_CHANNEL_IDS": ""}, "imex_channel_ids", ()),
        ({"IMEX_REQUIRED": "1"}, "imex_required", True),
        ({"KUBELET_SOCKET": ""}, "kubelet_socket", ""),
        ({"DEVICE_LIST_STRATEGY": "envvar,cdi-cri"}, "device_list_strategy", ("envvar", "cdi-cri")),
        ({"MIG_STRATEGY": "none", "BERTH_AGENT_MIG_STRATEGY": "single"}, "mig_strategy", "single"),
    ],
)
def test_other_forms_of_variables(variables: dict[str, str], field: str, expected: Any, load_options: Any) -> None:
    assert getattr(load_options(**variables).flags, field) == expected


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ([], {}, "index"),
        ([], {"DEVICE_ID_STRATEGY": "uuid"}, "uuid"),
        (["--device-id-strategy=index"], {"DEVICE_ID_STRATEGY": "uuid"}, "index"),
        (["--device-id-strategy=uuid"], {}, "uuid"),
    ],
    ids=["file", "variable before file", "flag before variable", "a flag's default before file"],
)
def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file(
    words: list[str], variables: dict[str, str], expected: str, load_options: Any
) -> None:
    file = {"flags": {"plugin": {"deviceIDStrategy": "index"}}}
    assert load_options(*words, file=file, **variables).flags.device_id_strategy == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--mig-strategy", "all"], "--mig-strategy all: Input should be 'none', 'single' or 'mixed'"),
        (["--device-list-strategy", "cdi"], "--device-list-strategy cdi: Input should be 'envvar', 'volume-mounts'"),
        (["--device-list-strategy="], "--device-list-strategy: Value should have at least 1 item"),
        (["--device-id-strategy", "name"], "--device-id-strategy name: Input should be 'uuid' or 'index'"),
        (["--pass-device-specs=perhaps"], "--pass-device-specs perhaps: Input should be a valid boolean"),
        (["--shared-devices-allocation-policy", "x"], "Input should be 'distributed' or 'packed'"),
        (
            ["--device-discovery-strategy", "tegra"],
            "--device-discovery-strategy tegra: Input should be 'auto' or 'nvml'",
        ),
        (["--imex-channel-ids", "1"], "--imex-channel-ids 1: Input should be less than or equal to 0"),
        (["--imex-channel-ids", "0,0"], "--imex-channel-ids 0,0: Value should have at most 1 item"),
        (["--mps-root", "/mps"], "--mps-root /mps: MPS is not supported; use sharing.timeSlicing"),
        (["--device-plugin", "--inventory", "simulated", "--fleet", "/f"], "--device-plugin is not supported with"),
    ],
)
def test_a_wrong_flag_ends_the_agent_with_one_plain_line(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["berth-agent", "--node-name", "a", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (2, 1)
    assert expected in error


@pytest.mark.parametrize(
    ("slicing", "expected"),
    [
        (SLICING, Sharing(replicas={"nvidia.com/gpu": 4})),
        ({**SLICING, "renameByDefault": True}, Sharing(replicas={"nvidia.com/gpu": 4}, rename=True)),
        ({**SLICING, "failRequestsGreaterThanOne": True}, Sharing(replicas={"nvidia.com/gpu": 4}, one_at_most=True)),
        ({**SLICING, "failRequestsGreaterThanOne": None}, Sharing(replicas={"nvidia.com/gpu": 4})),
        ({"resources": [{"name": "gpu", "replicas": 2}]}, Sharing(replicas={"nvidia.com/gpu": 2})),
        (
            {"resources": [{"name": "gpu", "replicas": 2}, {"name": "nvidia.com/mig-1g.5gb", "replicas": 3}]},
            Sharing(replicas={"nvidia.com/gpu": 2, "nvidia.com/mig-1g.5gb": 3}),
        ),
    ],
)
def test_slices_come_by_the_file(slicing: Any, expected: Sharing, load_options: Any) -> None:
    assert load_options(file={"version": "v1", "sharing": {"timeSlicing": slicing}}).sharing == expected


@pytest.mark.parametrize("file", ["", "{}", "version: v1", {"flags": None, "sharing": None}, {"version": None}])
def test_a_file_may_say_nothing(file: Any, load_options: Any) -> None:
    assert load_options(file=file) == Options(flags=load_options(file=file).flags)


def slices(**fields: Any) -> dict[str, Any]:
    return {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2} | fields]}}}


SLICED = "sharing.timeSlicing.resources"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({"version": "v2"}, "version: unknown version: v2; allowed is v1"),
        ("[1]", "the file: must be a mapping, is list"),
        ("a: [", "not YAML: "),
        ({"flag": {}}, "flag: no such field; there are version, flags, resources, sharing"),
        ({"flags": {"mig": "none"}}, "flags.mig: no such option; there are flags.migStrategy, "),
        ({"flags": {"plugin": {"x": 1}}}, "flags.plugin.x: no such option; there are "),
        ({"flags": {"plugin": 1}}, "flags.plugin: must be a mapping, is int"),
        ({"flags": {"migStrategy": "all"}}, "flags.migStrategy: Input should be 'none', 'single' or 'mixed'"),
        ({"flags": {"plugin": {"deviceIDStrategy": 1}}}, "flags.plugin.deviceIDStrategy: Input should be 'uuid' or"),
        ({"flags": {"plugin": {"deviceListStrategy": ["x"]}}}, "flags.plugin.deviceListStrategy: Input should be "),
        ({"flags": {"plugin": {"deviceListStrategy": []}}}, "flags.plugin.deviceListStrategy: Value should have at"),
        ({"flags": {"mpsRoot": "/mps"}}, "flags.mpsRoot: MPS is not supported; use sharing.timeSlicing"),
        ({"imex": {"channelIDs": [1]}}, "imex.channelIDs: Input should be less than or equal to 0"),
        ({"imex": {"channels": [0]}}, "imex.channels: no such option; there are imex.channelIDs, imex.required"),
        ({"sharing": {"mps": SLICING}}, "sharing.mps: MPS is not supported; use sharing.timeSlicing"),
        ({"sharing": {"mps": SLICING, "timeSlicing": SLICING}}, "sharing.mps: MPS is not supported"),
        ({"sharing": {"vgpu": {}}}, "sharing.vgpu: no such field; there are timeSlicing, mps"),
        ({"sharing": {"timeSlicing": {}}}, f"{SLICED}: no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": []}}}, f"{SLICED}: no resources specified"),
        (
            {"sharing": {"timeSlicing": {"strategy": "x"}}},
            "strategy: unknown time-slicing strategy: x; allowed is none",
        ),
        ({"sharing": {"timeSlicing": {**SLICING, "renameByDefault": 1}}}, "renameByDefault: 1: must be true or false"),
        ({"sharing": {"timeSlicing": {**SLICING, "x": 1}}}, "sharing.timeSlicing.x: no such field; there are strategy"),
        (slices(name=None), f"{SLICED}[0].name: no resource name specified"),
        (slices(replicas=None), f"{SLICED}[0].replicas: no replicas specified"),
        (slices(replicas=1), f"{SLICED}[0].replicas: 1: number of replicas must be >= 2"),
        (slices(replicas=0), f"{SLICED}[0].replicas: 0: number of replicas must be >= 2"),
        (slices(replicas=-1), f"{SLICED}[0].replicas: -1: number of replicas must be >= 2"),
        (slices(replicas="4"), f"{SLICED}[0].replicas: 4: number of replicas must be >= 2"),
        (slices(replicas=True), f"{SLICED}[0].replicas: True: number of replicas must be >= 2"),
        (slices(replicas=101), f"{SLICED}[0].replicas: 101: number of replicas must be <= 100"),
        (slices(name="$x"), f"{SLICED}[0].name: incorrect format for resource name 'nvidia.com/$x'"),
        (slices(name="a" * 60), f"{SLICED}[0].name: fully-qualified resource name must be 63 characters or less"),
        (slices(count=1), f"{SLICED}[0].count: no such field; there are name, replicas, rename, devices"),
        (
            {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}] * 2}}},
            f"{SLICED}[1].name: nvidia.com/gpu is there twice",
        ),
    ],
    ids=str,
)
def test_an_error_in_the_file_names_its_field(file: Any, expected: str, load_options: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionsError) as error:
        load_options(file=file)
    assert str(error.value).startswith(f"{tmp_path / 'config.yaml'}: ")
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("words", "file", "expected"),
    [
        ([], {"resources": {"gpus": [{"pattern": "*", "name": "a"}]}}, "resources: own names of resources are not sup"),
        ([], slices(rename="mine"), f"{SLICED}[0].rename: own names of resources are not supported; ignored"),
        ([], slices(devices=2), f"{SLICED}[0].devices: choosing devices is not supported; ignored, all are sliced"),
        ([], slices(devices=[0, "0:1"]), f"{SLICED}[0].devices: choosing devices is not supported; ignored"),
        (["--nvidia-ctk-path", "/x"], {}, "--nvidia-ctk-path has no effect in Berth's agent"),
        (["--container-driver-root", "/x"], {}, "--container-driver-root has no effect in Berth's agent"),
        (["--cdi-feature-flags", "x"], {}, "--cdi-feature-flags has no effect in Berth's agent"),
        (["--cdi-disable-hooks", "x"], {}, "--cdi-disable-hooks has no effect in Berth's agent"),
    ],
    ids=str,
)
def test_options_without_effect_give_a_warning(words: list[str], file: Any, expected: str, load_options: Any) -> None:
    (warning,) = load_options(*words, file=file).warnings
    assert warning.startswith(expected)


@pytest.mark.parametrize(
    "file", [slices(devices="all"), {"resources": {"gpus": []}}, {"flags": {"gfd": {"oneshot": 1}}}]
)
def test_what_changes_nothing_is_taken_in_silence(file: Any, load_options: Any) -> None:
    assert load_options(file=file).warnings == ()
