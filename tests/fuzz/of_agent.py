"""Parsers of the agent and of the client: files, kubelet's messages, plug-ins, the kernel's files, watches."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from berth_agent.configuration import options
from berth_agent.configuration.options import Flags, OptionsError
from berth_agent.configuration.settings import Settings
from berth_agent.health import annotations
from berth_agent.inventory import numbering, plugins, sysfs
from berth_agent.inventory.completed import CompletedInventory
from berth_agent.inventory.device_infos import DeviceInfos
from berth_agent.inventory.discovery.fpga import Fpgas
from berth_agent.inventory.discovery.rdma import RdmaNics
from berth_agent.kubelet import allocations, podresources
from berth_agent.kubelet.admission import checkpoint, pods
from berth_agent.kubelet.admission.checkpoint import VERSION, Checkpoint, CheckpointData
from berth_agent.kubelet.admission.mirror import Mirror
from berth_agent.kubelet.device_plugin import preferred
from berth_agent.kubelet.device_plugin.offered_ids import InvalidRequestError, OfferedIds
from berth_agent.kubelet.device_plugin.preferred import PreferenceError
from berth_agent.kubelet_api import deviceplugin_pb2, podresources_pb2
from berth_agent.readings import Process
from berth_agent.usage import processes
from berth_agent.vendors.amd.events import wedged
from berth_agent.vendors.amd.hand_over import AmdHandOver
from berth_agent.vendors.amd.inventory import AmdInventory
from berth_agent.vendors.nvidia.hand_over import resources, response
from berth_agent.vendors.nvidia.isolation import limits, versions
from berth_agent.vendors.simulated import fleet
from berth_agent.vendors.simulated.fleet import FleetError
from berth_api.allocation import device_ids
from berth_api.device import DeviceInfo, DeviceSpec
from berth_api.names import RDMA_RESOURCE
from berth_client import reflector
from berth_client.credentials import CredentialsError, of_kubeconfig
from tests.fuzz import inputs
from tests.fuzz.of_api import DEVICE
from tests.fuzz.target import Target
from tests.objects.builders import gpu_pod, pod, whole
from tests.objects.devices import machine, spec
from tests.objects.devices import options as plugin_options

# --- files ----------------------------------------------------------------------------------------------------------

_FLEET: Final = {
    "profiles": {"mine": {"model": "NVIDIA Mine", "memory": "16Gi", "mesh": [[0, 1, 2]], "mig": True}},
    "nodes": [
        {"names": "node-[0-2]", "profile": "a100", "gpus": 2, "rdma": 1, "unhealthy": [1], "mig": {0: ["1g.10gb"]}},
        {"names": "other", "profile": ["mine", "t4"], "mig_strategy": "single", "replicas": 2, "heartbeat": False},
    ],
}
_OPTIONS: Final = {
    "version": "v1",
    "flags": {"migStrategy": "mixed", "plugin": {"deviceListStrategy": ["envvar"], "passDeviceSpecs": True}},
    "sharing": {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
    "imex": {"channelIDs": [0], "required": False},
}
_DEVICE_INFOS: Final = [
    {
        "vendor": "huawei",
        "model": "Ascend-910B",
        "uuid": f"npu-{minor}",
        "minor": str(minor),
        "resources": {"huawei.com/npu-core": "20", "koordinator.sh/gpu-memory": "32Gi"},
        "topology": {"p2pLinks": [{"peerMinor": "0,1,2", "type": "HCCS"}], "nodeID": "0", "busID": "0000:00:08.0"},
        "status": {"healthy": minor > 0, "errCode": "chip error"},
    }
    for minor in range(3)
]
_BOOT: Final = "boot"
_PAYLOAD: Final = {
    "bootID": _BOOT,
    "promises": [{"uid": "u", "container": "main", "resource": "nvidia.com/gpu", "ids": ["GPU-0"], "silent": False}],
    "holdings": [{"uid": "u", "namespace": "ns", "pod": "pod", "container": "main", "ids": ["GPU-0"]}],
    "minors": {"GPU-0": 0},
    "cards": ["GPU-0"],
    "parents": {"MIG-0": "GPU-0"},
}
_KUBECONFIG: Final = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:6443/", "certificate-authority-data": "YQ=="}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


def _fleet(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_bytes(content)
        fleet.load(file)


def _options(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_bytes(content)
        options.load(Flags(config_file=file))


def _device_infos(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "devices").write_bytes(content)
        listed = DeviceInfos(Path(folder)).read()
        assert listed.finding is not None
        assert listed.finding.ok or not listed.cards
        # What is listed can be published.
        plugins.checked("gpu", listed.cards)


def _checkpoint(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint"
        file.write_bytes(content)
        data = Checkpoint(path=file, boot_id=_BOOT).load()
        Checkpoint(path=file, boot_id=_BOOT).save(pending=data.pending, holdings=data.holdings, units=data.units)
        assert Checkpoint(path=file, boot_id=_BOOT).load() == data
        assert isinstance(data, CheckpointData)


def _signed(payload: Any) -> Any:
    """Return a checkpoint with the right checksum: a damaged one is refused before its payload is read."""
    return {"version": VERSION, "checksum": checkpoint._checksum(payload), "payload": payload}


# --- kubelet --------------------------------------------------------------------------------------------------------

_MACHINE: Final = machine(spec(4, mig={3: ("1g.10gb", "2g.20gb")}), plugin_options(slices=2))
_OFFER: Final = resources.offers(_MACHINE.spec, _MACHINE.options).offers[0]
_IDS: Final = [unit.id for unit in _OFFER.units]
_PREFERRED: Final = {
    "containerRequests": [{"availableDeviceIDs": _IDS, "mustIncludeDeviceIDs": _IDS[:1], "allocationSize": 2}]
}
_ALLOCATE: Final = {"containerRequests": [{"devicesIds": _IDS[:2]}]}
_LISTED: Final = {
    "podResources": [
        {
            "name": "pod",
            "namespace": "ns",
            "containers": [{"name": "main", "devices": [{"resourceName": "nvidia.com/gpu", "deviceIds": ["GPU-0"]}]}],
        }
    ]
}
_OF_NODE: Final = pod("pod", {"nvidia.com/gpu": "1"}, allocated=whole(0), on="node", metadata={"resourceVersion": "7"})


def _message(kind: type[Message], raw: Any) -> Message:
    """Return a message: of bytes as gRPC reads it, of an object by its fields, as far as they have the right types."""
    return kind.FromString(raw) if isinstance(raw, bytes) else ParseDict(raw, kind(), ignore_unknown_fields=True)


def _preferred(raw: Any) -> None:
    message: Any = _message(deviceplugin_pb2.PreferredAllocationRequest, raw)
    offered = OfferedIds(_OFFER)
    for request in message.container_requests:
        offered.check(request.must_include_deviceIDs, one_at_most=False)
        chosen = preferred.prefer(
            _MACHINE.spec,
            _OFFER,
            offered.only(request.available_deviceIDs),
            request.must_include_deviceIDs,
            request.allocation_size,
            policy="distributed",
        )
        assert {*request.must_include_deviceIDs} <= {*chosen} <= {*_IDS}


def _allocate(raw: Any) -> None:
    message: Any = _message(deviceplugin_pb2.AllocateRequest, raw)
    for request in message.container_requests:
        OfferedIds(_OFFER).check(request.devices_ids, one_at_most=False)
        assert response.compose(_MACHINE, request.devices_ids, key="k").envs


def _pod_resources(raw: Any) -> None:
    message: Any = _message(podresources_pb2.ListPodResourcesResponse, raw)
    mirror = Mirror()
    mirror.put(pods.of_object(_OF_NODE))
    mirror.apply_reports(podresources._reports(message), 0.0)
    assert all(user.device.claim and user.device.pool for user in podresources._claimed(message))
    assert all(holding.ids for holding in mirror.holdings())


def _pod(raw: dict[str, Any]) -> None:
    assert pods.of_object(raw).uid == raw["metadata"]["uid"]


# --- devices --------------------------------------------------------------------------------------------------------

_SYSFS: Final = {
    "class/infiniband/mlx5_0/hca_type": "MT4123",
    "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    "class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp",
    "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
    "class/infiniband/mlx5_0/device/numa_node": "0",
    "class/infiniband/mlx5_0/device/local_cpulist": "0-3",
    "class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
    "bus/pci/devices/0000:3b:00.0/class": "0x120000",
    "bus/pci/devices/0000:3b:00.0/vendor": "0x10ee",
    "bus/pci/devices/0000:3b:00.0/device": "0x5001",
    "bus/pci/devices/0000:3b:00.0/numa_node": "-1",
    "bus/pci/devices/0000:3b:00.0/local_cpulist": "0-3",
    "devices/system/cpu/cpu0/topology/physical_package_id": "0",
    "devices/system/node/online": "0",
    "class/dmi/id/product_name": b"Caf\xe9 9000",
}


def _sysfs(files: dict[str, Any]) -> None:
    with TemporaryDirectory() as root:
        for path, content in files.items():
            file = Path(root) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else str(content).encode(errors="replace"))
        agents = (RdmaNics(Path(root)), Fpgas(Path(root), ids=("10ee",)))
        for agent in agents:
            results = asyncio.run(plugins.PluginRunner(agent, timeout=30).read(["node"]))
            assert results["node"][1].ok or results["node"][1].message
        assert sysfs.place(Path(root), "0000:3b:00.0").bus_id
        assert sysfs.machine(Path(root)).isprintable()


_CARD: Final = "bus/pci/devices/0000:05:00.0"
_KFD: Final = "class/kfd/kfd/topology/nodes"
_AMD: Final = {
    f"{_CARD}/vendor": "0x1002",
    f"{_CARD}/class": "0x120000",
    f"{_CARD}/device": "0x74a1",
    f"{_CARD}/revision": "0x00",
    f"{_CARD}/numa_node": "0",
    f"{_CARD}/local_cpulist": "0-3",
    f"{_CARD}/config": "abcd",
    f"{_CARD}/unique_id": "e3aa140f9a5f9e31",
    f"{_CARD}/product_name": "AMD Instinct MI300X OAM",
    f"{_CARD}/mem_info_vram_total": "206158430208",
    f"{_CARD}/mem_info_vram_used": "1048576",
    f"{_CARD}/gpu_busy_percent": "7",
    f"{_CARD}/current_compute_partition": "CPX",
    f"{_CARD}/current_memory_partition": "NPS4",
    f"{_CARD}/xgmi_hive_info/xgmi_hive_id": "15188982192727901047",
    f"{_CARD}/xgmi_num_hops": "00 01",
    f"{_CARD}/xgmi_num_links": "00 02",
    f"{_CARD}/ras/umc_err_count": "ue: 0\nce: 0",
    f"{_CARD}/ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R",
    f"{_CARD}/hwmon/hwmon4/temp2_input": "45000",
    f"{_CARD}/hwmon/hwmon4/temp2_crit": "105000",
    f"{_CARD}/hwmon/hwmon4/power1_average": "90000000",
    f"{_CARD}/drm/renderD128/dev": "226:128",
    f"{_KFD}/1/properties": "simd_count 152\nsimd_per_cu 4\nlocation_id 1280\ndomain 0\ndrm_render_minor 128",
    f"{_KFD}/2/properties": "simd_count 152\nsimd_per_cu 4\nlocation_id 1281\ndomain 0\ndrm_render_minor 129",
    f"{_KFD}/2/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 25769803776",
    f"{_KFD}/1/gpu_id": "41128",
    "class/kfd/kfd/proc/7/vram_41128": "1073741824",
    "class/kfd/kfd/proc/7/queues/0/gpuid": "41128",
    "7/fdinfo/3": "drm-pdev:\t0000:05:00.0\ndrm-client-id:\t7\ndrm-memory-vram:\t1024 KiB",
    "bus/pci/drivers/amdgpu/0000:05:00.0/x": "",
    "module/amdgpu/version": "6.10.5",
}
"""A card of AMD's in two partitions."""
_SOURCES: Final = st.sampled_from(("none", "kfd", "fdinfo"))
_SOME: Final = st.lists(st.sampled_from(sorted(_AMD)), max_size=3)


def _amd(raw: Any) -> None:
    """Read a card of AMD's, some of whose files lie, are huge or fail with EIO."""
    with TemporaryDirectory() as root:
        for path, content in raw["files"].items():
            file = Path(root) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if path in raw["refused"]:
                file.symlink_to("/proc/self/mem")
            else:
                file.write_bytes(content.encode(errors="replace") * (10**5 if path in raw["huge"] else 1))
        (Path(root) / "7/fd").mkdir(parents=True, exist_ok=True)
        (Path(root) / "self/ns").mkdir(parents=True)
        (Path(root) / "self/ns/pid").symlink_to("pid:[4026531836]")
        (Path(root) / "7/fd/3").symlink_to("/dev/dri/renderD128")
        options = Settings(node_name="n", sysfs_root=Path(root), proc_root=Path(root), amd_processes=raw["processes"])
        inventory = AmdInventory(options)
        # As the agent reads it: a file of the bus that cannot be read is a failed reading.
        cards = asyncio.run(CompletedInventory(inventory, node="n", timeout=60).read())["n"].spec
        DeviceSpec.model_validate_json(cards.model_dump_json(by_alias=True))
        assert len({card.minor for card in cards.devices}) == len({card.id for card in cards.devices})
        access = AmdHandOver(options).access(cards)
        for card in cards.devices:
            assert not device_ids.problem("gpu", card.id)
            paths = [device.host_path for device in access.grant([card.id]).devices]
            assert all(path == "/dev/kfd" or path.startswith("/dev/dri/renderD") for path in paths)
        asyncio.run(inventory.sample())


_WEDGED: Final = b"\0".join(
    (b"change@/x", b"DEVPATH=/devices/0000:05:00.0/drm/card1", b"SUBSYSTEM=drm", b"WEDGED=rebind,bus-reset", b"")
)


def _kernel_event(message: bytes) -> None:
    event = wedged(message)
    assert event is None or (event.methods.isprintable() and len(event.address) <= 64)


class _Plugin:
    """A device plug-in that reads what the test says."""

    name = "npu"

    def __init__(self, listed: Any) -> None:
        self._listed = listed

    def start(self) -> None:
        """Need nothing."""

    def read(self, node: str) -> Any:  # noqa: ARG002
        return self._listed


def _plugin(listed: Any) -> None:
    made = [_constructed(raw) for raw in listed] if isinstance(listed, list) else listed
    found = asyncio.run(plugins.PluginRunner(_Plugin(made), timeout=30).read(["node"]))["node"]
    assert all(isinstance(each, DeviceInfo) for each in found[0])
    assert "Pydantic serializer warnings" not in found[1].message


def _constructed(raw: Any) -> Any:
    """Return a device that a plug-in made without validation."""
    return DeviceInfo.model_construct(**raw) if isinstance(raw, dict) else raw


def _marks(text: str) -> None:
    devices = DeviceSpec.model_validate(DEVICE["spec"]).devices
    annotations.findings({"a": annotations.read(text, devices)})
    assert len(numbering.recalled(DeviceSpec(devices=devices), text)) >= 1


def _mps_limits(text: str) -> None:
    assert all(mebibytes > 0 for mebibytes in limits.memory_limits(text).values())


def _given(content: bytes) -> None:
    versions.unused([Path("/versions/1")], content)


_NIC_ENTRY: Final = {
    "PodUID": "u",
    "ContainerName": "main",
    "ResourceName": RDMA_RESOURCE,
    "DeviceIDs": {"-1": ["rdma-0"]},
    "AllocResp": "KhUKE2JlcnRoLmRldi9yZG1hPW5hbWU=",
}


def _nic_entries(content: bytes) -> None:
    entries, problems = allocations.read(content, RDMA_RESOURCE)
    assert all(problems)
    # As keys of mappings, and in names of files.
    assert all(isinstance(text, str) for entry in entries for text in (entry.pod, *entry.ids, *entry.cdi_devices))


_ASCII: Final = st.characters(max_codepoint=127)


def _cgroup(content: bytes) -> None:
    with TemporaryDirectory() as proc:
        (Path(proc) / "7").mkdir()
        (Path(proc) / "7/cgroup").write_bytes(content)
        owners = processes.memory_by_owner([Process(pid=7, memory=1)], Path(proc))
        uids = {uid for uid, _ in owners if uid}
        assert uids == processes.pods_with_processes(Path(proc))
        assert all(len(uid) in (32, 36) for uid in uids)
        assert all(len(container) in (0, 64) for _, container in owners)
        assert bool(processes.foreign({0: [Process(pid=7)]}, Path(proc))) == (not uids)


# --- the client -----------------------------------------------------------------------------------------------------

_EVENT: Final = {"type": "MODIFIED", "object": {**gpu_pod("pod"), "metadata": {"resourceVersion": "7", "name": "pod"}}}


def _event(line: bytes) -> None:
    reflector._parse(line)


_NPU: Final = {"type": "npu", "minor": 0, "id": "npu-0", "health": True, "resources": {"example.com/npu": 100}}
_CHECKED: Final = (ParseError, DecodeError)
"""Errors of gRPC itself, which answers the call with them."""

TARGETS: Final = (
    Target(name="fleet", inputs=inputs.as_yaml(inputs.near(_FLEET)), parse=_fleet, errors=(FleetError,)),
    Target(name="plugin options", inputs=inputs.as_yaml(inputs.near(_OPTIONS)), parse=_options, errors=(OptionsError,)),
    Target(name="device infos", inputs=inputs.as_json(inputs.near(_DEVICE_INFOS)), parse=_device_infos),
    Target(
        name="checkpoint",
        inputs=st.one_of(
            inputs.as_json(inputs.near(_PAYLOAD).map(_signed)), inputs.as_json(inputs.near(_signed(_PAYLOAD)))
        ),
        parse=_checkpoint,
    ),
    Target(
        name="preferred allocation",
        inputs=st.one_of(inputs.objects(_PREFERRED), st.binary(max_size=64)),
        parse=_preferred,
        errors=(*_CHECKED, PreferenceError, InvalidRequestError),
    ),
    Target(
        name="allocate",
        inputs=st.one_of(inputs.objects(_ALLOCATE), st.binary(max_size=64)),
        parse=_allocate,
        errors=(*_CHECKED, InvalidRequestError),
    ),
    Target(
        name="pod resources",
        inputs=st.one_of(inputs.objects(_LISTED), st.binary(max_size=64)),
        parse=_pod_resources,
        errors=_CHECKED,
    ),
    Target(name="pod of the node", inputs=inputs.typed(_OF_NODE, below=("annotations", "labels")), parse=_pod),
    Target(name="sysfs", inputs=inputs.typed(_SYSFS), parse=_sysfs),
    Target(
        name="sysfs of amd",
        inputs=st.fixed_dictionaries(
            {"files": inputs.typed(_AMD), "refused": _SOME, "huge": _SOME, "processes": _SOURCES}
        ),
        parse=_amd,
    ),
    Target(name="kernel event", inputs=st.one_of(inputs.damaged(st.just(_WEDGED)), st.binary()), parse=_kernel_event),
    Target(name="device plug-in", inputs=inputs.near([_NPU]), parse=_plugin),
    Target(
        name="device annotations",
        inputs=st.one_of(inputs.texts, st.from_regex(r"((gpu|rdma)/[0-9]{1,6}=[a-z0-9:]{1,9},?){0,4}", fullmatch=True)),
        parse=_marks,
    ),
    Target(
        name="mps limits",
        inputs=st.one_of(inputs.texts, st.from_regex(r"([0-9]{1,3}=[0-9]{1,9}M,?){0,4}", fullmatch=True)),
        parse=_mps_limits,
    ),
    Target(
        name="checkpoint of kubelet",
        inputs=inputs.as_json(
            inputs.near({"Data": {"PodDeviceEntries": [{"PodUID": "u", "AllocResp": "L3ZlcnNpb24="}]}})
        ),
        parse=_given,
        errors=(ValueError,),
    ),
    Target(
        name="nics in kubelet's checkpoint",
        inputs=inputs.as_json(inputs.near({"Data": {"PodDeviceEntries": [_NIC_ENTRY, _NIC_ENTRY]}})),
        parse=_nic_entries,
        errors=(ValueError,),
    ),
    Target(
        name="cgroup",
        inputs=st.one_of(
            st.binary(max_size=64),
            inputs.damaged(
                st.from_regex(r"0::/kubepods[a-z/.-]{0,9}pod[0-9a-f_-]{30,40}/[0-9a-f]{0,64}", alphabet=_ASCII).map(
                    str.encode
                )
            ),
        ),
        parse=_cgroup,
    ),
    Target(
        name="watch event",
        inputs=inputs.as_json(inputs.near(_EVENT)),
        parse=_event,
        errors=(reflector._RelistNeededError,),
    ),
    Target(
        name="kubeconfig",
        inputs=inputs.near(_KUBECONFIG),
        parse=lambda document: of_kubeconfig(document, Path("/")),
        errors=(CredentialsError,),
    ),
)
