"""Pods are deleted at the worst moment."""

from collections.abc import Mapping
from typing import ClassVar

from tests.chaos.faults.base import Family, Healed


class PodFaults(Family):
    """Faults of pods."""

    weights: ClassVar[Mapping[str, int]] = {"pods_deleted_while_binding": 6}

    def pods_deleted_while_binding(self) -> Healed:
        """Delete pods whose Bindings have been sent, and have not arrived."""
        site = self.site
        site.replicas.leader()
        held = [each.proxy.hold("POST", "/probe-[0-9]+/binding$") for each in site.replicas.all()]
        names = [site.probe() for _ in range(self.chance.randint(1, 3))]
        self.until_struck(lambda: sum(len(each.caught) for each in held) >= len(names))
        for name in names:
            site.remove(site.live.pods[name])
        for rule in held:
            rule.release()
        return Healed()
