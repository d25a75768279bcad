"""Cards are renumbered, fail and recover, and their agents fall silent."""

import time
from collections.abc import Mapping
from typing import ClassVar

from tests.chaos.faults.base import Family, Healed
from tests.chaos.machines import CARDS, GRACE, HEARTBEAT, Machine


class CardFaults(Family):
    """Faults of devices and agents."""

    weights: ClassVar[Mapping[str, int]] = {
        "minors_permuted": 6,
        "minors_permuted_at_a_reboot": 4,
        "card_lost": 5,
        "health_flipped": 6,
        "agent_silent": 0,
        "agent_killed": 5,
    }

    def minors_permuted(self) -> Healed:
        """Number a node's cards in another order under its agent."""
        machine = self._machine()
        machine.permute(self.chance)
        self.last(0.5, 1.5)
        return Healed(node=machine.node)

    def minors_permuted_at_a_reboot(self) -> Healed:
        """Number a node's cards in another order before its agent sees them again."""
        machine = self._machine()
        machine.kill()
        machine.permute(self.chance)
        machine.start()
        return Healed(node=machine.node)

    def card_lost(self) -> Healed:
        """Remove a card from a node, and put it back."""
        machine = self._machine()
        cards = machine.fixture.gpus
        lost = machine.fixture.remove(
            self.chance.choice([index for index, card in enumerate(cards) if "A100" in card.name])
        )
        self.last(0.5, 2.0)
        machine.fixture.add(lost)
        return Healed(node=machine.node)

    def health_flipped(self) -> Healed:
        """Report cards of a node as failed, and as healthy again."""
        node = self.chance.choice(self.site.machines.simulated)
        self.site.world.change(node, unhealthy=self.chance.sample(range(CARDS), self.chance.randint(1, CARDS)))
        self.last(0.5, 2.0)
        self.site.world.change(node, unhealthy=[])
        return Healed(node=node)

    def agent_silent(self) -> Healed:
        """Stop an agent until its Lease has expired, and let it continue."""
        machine = self._machine()
        machine.agent.pause()
        time.sleep(float(str(HEARTBEAT["lease_duration"])) + GRACE + 1)
        machine.agent.resume()
        return Healed(node=machine.node)

    def agent_killed(self) -> Healed:
        """Kill the agent of the simulated nodes, and start it again."""
        self.site.machines.agent.kill()
        self.last(0.1, 1.0)
        self.site.machines.restart_agent()
        return Healed(node=self.chance.choice(self.site.machines.simulated))

    def _machine(self) -> Machine:
        return self.chance.choice(self.site.machines.with_nvml)
