"""Upstream's suites that are run, and their parts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster.building import programs, versions
from tests.upstream.cases import GoTests, Part
from tests.upstream.specs import Specs

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
        yield GoTests(package=DRA_PACKAGE, name=name, run=f"^TestDRA$/^{name}$", skip=f"^TestDRA$/.*/{heavy}")
    for name in WITH_HEAVY:
        yield GoTests(package=DRA_PACKAGE, name=f"{name}-heavy", run=f"^TestDRA$/^{name}$/{heavy}")
    yield GoTests(package=DRA_PACKAGE, name="status-requests", run="^TestResourcePoolStatusRequest$")


DRA: Final = Suite(name="dra", api_servers={"1.36": "kube-apiserver", "1.37": "kube-apiserver-1.37"}, parts=_dra)

# --- podgroup -------------------------------------------------------------------------------------------------

PODGROUP_PACKAGE: Final = "test/integration/scheduler/podgroup"
TOPOLOGY_PACKAGE: Final = f"{PODGROUP_PACKAGE}/topology_aware_scheduling"
QUEUEING_PACKAGE: Final = f"{PODGROUP_PACKAGE}/queueing"
GROUPS: Final = "^Test(PodGroupScheduling|WorkloadAwarePreemption|PodGroupDependentRequiredValidation)"
WITH_PLUGINS: Final = "(mid-cycle|PreBind)"
"""Cases of the queue with plugins of their own."""

PLUGINS: Final = "adds plugins of its own to kube-scheduler's process"
STEPS: Final = "runs kube-scheduler's cycles one by one in its process"
COMPOSITE: Final = "CompositePodGroups (alpha) are not supported"


def _podgroup() -> Iterator[Part]:
    yield GoTests(package=PODGROUP_PACKAGE, name="groups", run=GROUPS)
    for policy in ("gang", "basic"):
        run = f"^TestTopologyAwareSchedulingWith{policy.title()}Policy$"
        yield GoTests(package=TOPOLOGY_PACKAGE, name=f"topology-{policy}", run=run)
    queueing, in_process = "^TestPodGroupQueueing$", "^Test(PostFilterNotCalled|PodGroupPostFilterIteration)$"
    yield GoTests(package=QUEUEING_PACKAGE, name="queueing", run=queueing, skip=f"{queueing}/{WITH_PLUGINS}")
    yield GoTests(package=QUEUEING_PACKAGE, name="plugins", run=f"{queueing}/{WITH_PLUGINS}", not_berths=PLUGINS)
    yield GoTests(package=PODGROUP_PACKAGE, name="post-filter", run=in_process, not_berths=PLUGINS)
    steps = "^TestPodGroup(SequentialQueueing|RequeueRemainingOnSchedulingSuccess)$"
    yield GoTests(package=QUEUEING_PACKAGE, name="steps", run=steps, not_berths=STEPS)
    yield GoTests(
        package=PODGROUP_PACKAGE, name="composite", run="^TestCPG(Scheduling|Queueing)$", not_berths=COMPOSITE
    )
    yield GoTests(package=TOPOLOGY_PACKAGE, name="composite-topology", run="^TestCPGTopology", not_berths=COMPOSITE)


PODGROUP: Final = Suite(name="podgroup", api_servers={"1.37": "kube-apiserver-1.37"}, parts=_podgroup)

# --- e2e ------------------------------------------------------------------------------------------------------

PARTS: Final = {
    "predicates": ("SchedulerPredicates",),
    "preemption": ("SchedulerPreemption",),
    "others": ("SchedulerPriorities", "Multi-AZ Clusters", "LimitRange"),
}
WORKLOADS: Final = ("Workload", "GangScheduling", "WorkloadAwarePreemption")
"""What needs the feature gate GenericWorkload."""


def _e2e() -> Iterator[Part]:
    for name, subjects in PARTS.items():
        yield Specs(name=name, subjects=subjects)
    yield Specs(name="workloads", subjects=WORKLOADS, has_workloads=True)


E2E: Final = Suite(name="e2e", api_servers=DRA.api_servers, parts=_e2e)

SUITES: Final = {suite.name: suite for suite in (DRA, PODGROUP, E2E)}
