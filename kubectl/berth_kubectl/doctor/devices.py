"""Checks of the devices: those that failed, with who holds them and what ends the fault."""

from collections.abc import Iterator
from typing import Final

from berth_api.objects import device_text, faults
from berth_api.objects.faults import Fault
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.reading.contract import Object
from berth_kubectl.reading.fleet import faults_of
from berth_kubectl.reading.objects import name_of

SHOWN: Final = 4
"""Pods that a finding names before it counts the others."""
REBOOT: Final = "UntilReboot"
RESET: Final = "UntilReset"


def failed_device(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each device with a fault, except those that a person cordoned."""
    for device in facts.all_of("devices"):
        for card in (device.get("spec") or {}).get("devices") or ():
            found = [each for each in faults_of(card) if each.kind != faults.CORDONED]
            if found:
                yield _finding(device, card, found)


def _finding(device: Object, card: Object, found: list[Fault]) -> Finding:
    node = name_of(device)
    what = f"{device_text.of_device(card['type'], card['minor'], card['id'])} {card['id']}"
    return Finding(
        check="FailedDevice",
        object=f"node/{node}",
        message=f"{what} is not allocated ({faults.text(found)}); {_held_by(device, card)}",
        fix=_fix(node, card, {each.ends for each in found}),
    )


def _held_by(device: Object, card: Object) -> str:
    uses = (device.get("status") or {}).get("devices") or ()
    key = (card["type"], card["minor"])
    holders = [each for use in uses if (use["type"], use["minor"]) == key for each in use.get("holders") or ()]
    pods = sorted({f"{each['namespace']}/{each['name']}" for each in holders})
    more = f" and {len(pods) - SHOWN} more" if len(pods) > SHOWN else ""
    return f"held by {', '.join(pods[:SHOWN])}{more}" if pods else "no pod holds it"


def _fix(node: str, card: Object, ends: set[str]) -> str:
    if REBOOT in ends:
        return f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data   # then reboot it, and uncordon it"
    if RESET in ends and card["type"] == "gpu":
        return f"nvidia-smi --gpu-reset -i {card['id']}   # on {node}, once no pod holds the GPU"
    return f"kubectl get device {node} -o yaml"
