"""Check the promise in the first lines of each file of `manifests/examples` against the resulting pods."""

from collections.abc import Callable, Mapping
from typing import Final

from devcluster import waiting
from tests.integration.documents.site import Site, count, linked, visible

GIB: Final = 1 << 30

Check = Callable[[Site], bool]


def _whole(name: str, number: int) -> Check:
    def check(site: Site) -> bool:
        cards = site.held(name)
        return all(card.is_whole() for card in cards) and count([card.node for card in cards]) == [number]

    return check


def _half(site: Site) -> bool:
    one, other = site.held("half-1", "half-2")
    return one.id == other.id and (one.ratio, other.ratio) == (50, 50)


def _part(name: str, **amounts: str) -> Check:
    """Check that a pod has a part of one card: `core`, `memory`, `memory_ratio`."""
    wanted = {f"kubernetes.io/gpu-{key.replace('_', '-')}": amount for key, amount in amounts.items()}

    def check(site: Site) -> bool:
        [part] = site.held(name)
        return wanted.items() <= part.resources.items() and part.ratio < 100

    return check


def _shares_of_two(site: Site) -> bool:
    cards = site.held("shares-of-two")
    memory = [card.resources["kubernetes.io/gpu-memory"] for card in cards]
    return memory == ["20Gi", "20Gi"] and len({card.id for card in cards}) == 2 and len({c.model for c in cards}) == 1


def _min_memory(site: Site) -> bool:
    [part] = site.held("min-memory")
    memory: str = part.card["resources"]["kubernetes.io/gpu-memory"]
    return part.ratio == 50 and _bytes(memory) * part.ratio // 100 >= 40 * GIB


def _bytes(text: str) -> int:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def _by_model(site: Site) -> bool:
    [card] = site.held("by-model")
    return card.is_whole() and ("H100" in card.model or "H200" in card.model)


def _mig_profile(site: Site) -> bool:
    [instance] = site.held("mig-profile")
    return instance.id.startswith("MIG-") and instance.resources == {"nvidia.com/mig-1g.10gb": "1"}


def _time_slice(site: Site) -> bool:
    [part] = site.held("time-slice")
    return part.id.startswith(f"{part.card['id']}::")


def _subdevices_only(site: Site) -> bool:
    [part] = site.held("subdevices-only")
    return str(part.card["id"]) != part.id


def _nvlink(site: Site) -> bool:
    cards = site.held("nvlink")
    return len(cards) == 4 and linked(cards) and all(card.is_whole() for card in cards)


def _pcie_preferred(site: Site) -> bool:
    cards = site.held("pcie-preferred")
    return count([card.switch for card in cards]) == [2]


def _numa_scope(site: Site) -> bool:
    cards = site.held("numa-scope")
    return count([(card.node, card.socket) for card in cards]) == [4]


def _selector(site: Site) -> bool:
    [card] = site.held("selector")
    return card.socket == 0


def _partition(site: Site) -> bool:
    cards = site.held("partition")
    return sorted(card.card["minor"] for card in cards) in ([0, 1, 2, 3], [4, 5, 6, 7])


def _mixed(site: Site) -> bool:
    cards = site.held("mixed-gpus")
    return len(cards) == 3 and len({card.model for card in cards}) > 1


def _rdma(site: Site) -> bool:
    switches = {card.switch for card in site.held("rdma")}
    return {nic.switch for nic in site.held("rdma", kind="rdma")} == switches


def _every_nic(site: Site) -> bool:
    nics = site.held("every-nic", kind="rdma")
    [device] = [device for device in site.devices() if device["metadata"]["name"] == nics[0].node]
    there = [card["minor"] for card in device["spec"]["devices"] if card["type"] == "rdma"]
    amounts = {nic.resources["kubernetes.io/rdma"] for nic in nics}
    return sorted(nic.card["minor"] for nic in nics) == there and amounts == {"10"}


def _fpga(site: Site) -> bool:
    [fpga] = site.held("fpga", kind="fpga")
    return fpga.resources == {"kubernetes.io/fpga": "100"}


def _by_label(site: Site) -> bool:
    [pod], [part] = site.bound("by-label"), site.held("by-label")
    return part.resources["kubernetes.io/gpu-memory"] == "8Gi" and visible(pod, "main") == [part.id]


def _two_containers(site: Site) -> bool:
    [pod] = site.bound("two-containers")
    seen = [*visible(pod, "encoder"), *visible(pod, "decoder")]
    return len(seen) == 2 and sorted(seen) == sorted(card.id for card in site.held("two-containers"))


def _deployment(site: Site) -> bool:
    return [card.ratio for card in site.held("service-", "service-", "service-")] == [25, 25, 25]


def _job(site: Site) -> bool:
    [card] = site.held("batch-")
    [pod] = site.bound("batch-")
    waiting.until(lambda: _phase(site, pod["metadata"]["name"]) == "Succeeded", what="the pod to complete")
    waiting.until(lambda: _is_free(site, card.node, card.id), what="the card to be free again")
    return card.is_whole()


def _phase(site: Site, name: str) -> str:
    return next(str(pod["status"]["phase"]) for pod in site.pods() if pod["metadata"]["name"] == name)


def _is_free(site: Site, node: str, card: str) -> bool:
    [device] = [device for device in site.devices() if device["metadata"]["name"] == node]
    return not any(entry.get("id") == card and entry.get("holders") for entry in device["status"]["devices"])


def _gang(name: str, number: int) -> Check:
    def check(site: Site) -> bool:
        cards = site.held(*[f"{name}-"] * number)
        return count([card.node for card in cards]) == [number]

    return check


def _gang_nvlink(site: Site) -> bool:
    cards = site.held(*["train-nvlink-"] * 4)
    nodes = {card.node: [other for other in cards if other.node == card.node] for card in cards}
    return len(nodes) == 4 and all(len(own) == 8 and linked(own) for own in nodes.values())


def _priority(site: Site) -> bool:
    [card] = site.held("urgent")
    waiting.until(lambda: any(name.startswith("patient-") for name in site.messages()), what="the other pod to wait")
    return card.model == "NVIDIA L4"


def _unnamed(site: Site) -> bool:
    [pod], [part] = site.bound("unnamed-scheduler"), site.held("unnamed-scheduler")
    return pod["spec"]["schedulerName"] == "berth-scheduler" and part.ratio == 25


def _no_gpu(site: Site) -> bool:
    return site.held("no-gpu") == []


def _waits(site: Site) -> bool:
    return "GPUs of model *H200*" in site.message("waits")


CHECKS: Final[Mapping[str, Check]] = {
    "by-label": _by_label,
    "by-memory": _part("by-memory", memory="20Gi"),
    "by-model": _by_model,
    "core-and-memory": _part("core-and-memory", core="30", memory="20Gi"),
    "deployment": _deployment,
    "every-nic": _every_nic,
    "fpga": _fpga,
    "gang": _gang("train", 4),
    "gang-by-annotation": _gang("train-by-annotation", 2),
    "gang-nvlink": _gang_nvlink,
    "half": _half,
    "job": _job,
    "memory-ratio": _part("memory-ratio", memory_ratio="30"),
    "mig-profile": _mig_profile,
    "min-memory": _min_memory,
    "mixed-gpus": _mixed,
    "no-gpu": _no_gpu,
    "numa-scope": _numa_scope,
    "nvlink": _nvlink,
    "partition": _partition,
    "pcie-preferred": _pcie_preferred,
    "priority": _priority,
    "rdma": _rdma,
    "selector": _selector,
    "shares-of-two": _shares_of_two,
    "subdevices-never": _whole("subdevices-never", 1),
    "subdevices-only": _subdevices_only,
    "time-slice": _time_slice,
    "two-cards": _whole("two-cards", 2),
    "two-containers": _two_containers,
    "unnamed-scheduler": _unnamed,
    "waits": _waits,
    "whole": _whole("whole", 1),
}
"""By the name of the file. A check waits for the pods, and returns whether they have what the file's comment says."""

REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "nvlink": ("node-15", "with NVLinks among all of them"),
    "min-memory": ("node-15", "too little memory"),
    "subdevices-never": ("node-13", "neither sliced nor in MIG mode"),
    "gang": ("node-14", "1 of the 4 required members fit"),
    "gang-by-annotation": ("node-14", "1 of the 2 required members fit"),
}
"""Examples whose constraint other nodes meet by chance: a node on which they have to wait, and a part of the reason."""
