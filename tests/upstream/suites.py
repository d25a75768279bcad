"""Upstream's suites that are run, and their parts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster.building import programs, versions
from tests.upstream.cases import Part

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests of upstream that belong together."""

    name: str
    api_servers: Mapping[str, str]
    """Kubernetes' version -> the program of devcluster that pins it; the first one is the default."""
    parts: Callable[[], Iterator[Part]]

    def lists(self, api_server: str) -> tuple[Path, Path]:
        """Return the files with what kube-scheduler passes, and with where Berth may differ."""
        version = versions.text(programs.PROGRAMS[api_server].version)
        folder = HERE / self.name
        return folder / f"kube-scheduler-{version}.json", folder / f"differences-{version}.yaml"


# --- dra ------------------------------------------------------------------------------------------------------

DRA_PACKAGE: Final = "test/integration/dra"
HEAVY: Final = (
    "DRANodeAllocatableResources",
    "EvictCluster.*",
    "MaxResourceSlice",
    "PodGroup",
    "ResourceSliceController",
    "ShareResourceClaimSequentially",
    "UsesAllResources",
)
"""Cases with hundreds of pods, or of megabytes, and those that wait for minutes and keep the others waiting."""
CONFIGURATIONS: Final = (
    "disabled",
    "default",
    "GA",
    "GA-1.35",
    "GA-1.36",
    "GA-opt-out",
    "GA-opt-out-1.36",
    "compatibility-groups-without-consumable-capacity",
    "v1beta1",
    "v1beta2",
    "all",
)
"""Those of all versions: a run that a version does not have has no cases."""
WITH_HEAVY: Final = ("default", "GA", "all")


def _dra() -> Iterator[Part]:
    heavy = f"^({'|'.join(HEAVY)})$"
    for name in CONFIGURATIONS:
        yield Part(package=DRA_PACKAGE, name=name, run=f"^TestDRA$/^{name}$", skip=f"^TestDRA$/.*/{heavy}")
    for name in WITH_HEAVY:
        yield Part(package=DRA_PACKAGE, name=f"{name}-heavy", run=f"^TestDRA$/^{name}$/{heavy}")
    yield Part(package=DRA_PACKAGE, name="status-requests", run="^TestResourcePoolStatusRequest$")


DRA: Final = Suite(name="dra", api_servers={"1.36": "kube-apiserver", "1.37": "kube-apiserver-1.37"}, parts=_dra)

# --- podgroup -------------------------------------------------------------------------------------------------

PODGROUP_PACKAGE: Final = "test/integration/scheduler/podgroup"
IN_PROCESS: Final = "^(TestPostFilterNotCalled|TestPodGroupPostFilterIteration)$"
"""Tests with plugins of their own in kube-scheduler's process."""
QUEUEING: Final = "^TestPodGroup(Queueing|SequentialQueueing|RequeueRemainingOnSchedulingSuccess)$"
"""Tests of kube-scheduler's queue, step by step."""
COMPOSITE: Final = "^(TestCPGScheduling|TestCPGQueueing|TestPodGroupDependentRequiredValidation)$"
"""Tests of groups of groups."""


def _podgroup() -> Iterator[Part]:
    topology = f"{PODGROUP_PACKAGE}/topology_aware_scheduling"
    yield Part(package=PODGROUP_PACKAGE, name="groups", run="^Test(PodGroupScheduling|WorkloadAwarePreemption)")
    yield Part(package=topology, name="topology", run="^TestTopologyAwareScheduling")
    yield Part(package=PODGROUP_PACKAGE, name="in-process", run=IN_PROCESS, with_berth=False)
    yield Part(package=PODGROUP_PACKAGE, name="composite", run=COMPOSITE, with_berth=False)
    yield Part(package=topology, name="composite-topology", run="^TestCPGTopologyAware", with_berth=False)
    yield Part(package=f"{PODGROUP_PACKAGE}/queueing", name="queueing", run=QUEUEING, with_berth=False)


PODGROUP: Final = Suite(name="podgroup", api_servers={"1.37": "kube-apiserver-1.37"}, parts=_podgroup)

SUITES: Final = {suite.name: suite for suite in (DRA, PODGROUP)}
