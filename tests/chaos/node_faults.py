"""What other programs and people do to a node while its programs run; all of it passes within seconds."""

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from berth_api.names import CARDS_KEY, PARTITIONS_KEY
from devcluster import Arena
from tests.nvml.fixture import Gpu, NvmlFixture
from tests.programs.surroundings import AGENTS_WRITES, refused


class NodeFaults:
    """Injects faults into one node."""

    def __init__(self, arena: Arena, node: str, machine: NvmlFixture, *, cdi: Path, draws: random.Random) -> None:
        """Describe the node; `cdi` is its folder of CDI files, in which only Berth writes."""
        self._arena, self._node, self._machine = arena, node, machine
        self._cdi, self._random = cdi, draws
        self.kinds: Mapping[str, Callable[[], None]] = {
            "labels": self.change_labels,
            "CDI files": self.remove_cdi_files,
            "Device": lambda: arena.delete("devices", node),
            "writes": self.refuse_writes,
        }

    def change_labels(self) -> None:
        """Change how the node gives its cards while pods start and run, and change it back."""
        labels = self._arena.get("nodes", self._node)["metadata"]["labels"]
        before = {key: labels.get(key) for key in (CARDS_KEY, PARTITIONS_KEY)}
        for _ in range(2):
            mode = self._random.choice([None, "both", before[CARDS_KEY]])
            self._label({CARDS_KEY: mode, PARTITIONS_KEY: self._random.choice([None, "all"])})
            time.sleep(self._random.uniform(0, 3))
        self._label(before)

    def remove_cdi_files(self) -> None:
        """Remove all CDI files."""
        for file in self._cdi.iterdir():
            file.unlink(missing_ok=True)

    def refuse_writes(self) -> None:
        """Refuse what an agent writes about the node, for some seconds in which a card recovers."""
        gpu = self._random.choice(self._machine.gpus)
        self.set(gpu, has_failed=True)
        time.sleep(self._random.uniform(0, 3))
        with refused(self._arena, *self._random.choice(AGENTS_WRITES), node=self._node):
            time.sleep(self._random.uniform(2, 5))
            self.set(gpu, has_failed=False)
            time.sleep(self._random.uniform(0, 5))

    def set(self, gpu: Gpu, *, has_failed: bool) -> None:
        """Make a card fail, or recover."""
        gpu.remapped_failure = has_failed
        self._machine.write()

    def _label(self, labels: Mapping[str, str | None]) -> None:
        self._arena.merge("nodes", self._node, {"metadata": {"labels": labels}})
