"""The rows of the table: the words of other systems, as their sources define them.

Words that are not in the table are not read. Documents show `Word.means`. Messages show `Word.answer` and the answers
of choices.
"""

from typing import Any, Final

from berth_api import names
from berth_api.words.table import GIB, MIB, Choice, PodGroupKind, Role, System, Table, Word, WordPlace

_SHARED: Final = f"{names.PREFIX}{names.GPU_SHARED}"
_ISOLATION: Final = names.ISOLATION
_HAMI_CORE: Final = "HAMi-core"

_OWN_PROFILE: Final = (
    "the profile of the scheduler name decides how pods are packed: for another strategy, set the scheduler name of "
    "another profile"
)
_INSTANCES: Final = "request MIG instances by their profile, such as nvidia.com/mig-1g.10gb: 1"
_NO_MPS: Final = "Berth does not start MPS: remove it, and the pods use the card in turns"
_QUEUE_MEANS: Final = "the queue whose quota the pod uses"
_QUEUE: Final = "Berth has no queues: for quotas use the label kueue.x-k8s.io/queue-name with Kueue"
_OTHER_VENDOR: Final = (
    "Berth divides cards of NVIDIA only: request what the vendor's device plugin offers, or install a plug-in of Berth"
)
_LIMIT: Final = "Berth has no separate limit: write this amount as the request"


_OWN_MINIMUM: Final = f"write the annotations {names.POD_GROUP} and {names.POD_GROUP_MIN_MEMBER} on the pods"
_COUNTED_PARTS: Final = (
    "in HAMi, `nvidia.com/gpu` in a Node's capacity counts parts of cards. With Berth, it counts cards. A pod that "
    "requests `nvidia.com/gpu` without any of the other words below gets whole cards"
)
_EACH_CARD: Final = (
    "amounts are for each card. Berth's own amounts are totals of all cards of the container, so `migrate` multiplies "
    "them"
)
_QUOTAS: Final = (
    "Berth refuses a pod if a ResourceQuota or LimitRange of its namespace would count less than the pod gets. If a "
    "container requests two cards, for example, a quota counts the memory of only one. Request one card in each "
    "container, or limit the namespace by `namespaceLimits`"
)
_LIMITS: Final = (
    "a container is limited to its parts of cards only if the component `isolation` is installed and the pod "
    "requests limits"
)
_NO_QUEUES: Final = "queues have no effect. For quotas, use Kueue"
_NO_SUBGROUPS: Final = "Berth counts all members of a group together: its parts have no minimum of their own"
_PREEMPTS: Final = "Berth preempts only by priority: give the pod a PriorityClass"
_PRIORITY: Final = "Berth uses the priority of the pods: write spec.priorityClassName in their template"
_TOPOLOGY_KEYS: Final = "members are placed close together by the profile's gang.topologyKeys"
_MIN_RESOURCES: Final = "a waiting group holds nothing, and Berth places members by their own requests"
_BACKOFF: Final = "Berth tries a waiting pod again when a change may have helped it"


def _annotation(name: str, role: Role, means: str, **more: Any) -> Word:
    return Word(name=name, place=WordPlace.ANNOTATION, role=role, means=means, **more)


def _label(name: str, role: Role, means: str, **more: Any) -> Word:
    return Word(name=name, place=WordPlace.LABEL, role=role, means=means, **more)


def _refused(names_of_words: tuple[str, ...], means: str, answer: str) -> tuple[Word, ...]:
    return tuple(Word(name=name, role=Role.REFUSED, means=means, answer=answer) for name in names_of_words)


_TOPOLOGY: Final = {
    level: {names.GPU_TOPOLOGY: level, names.GPU_TOPOLOGY_POLICY: policy}
    for level, policy in (("nvlink", "preferred"), ("numa", "required"))
}

_PACKING: Final = {"binpack": Choice(note=_OWN_PROFILE), "spread": Choice(note=_OWN_PROFILE)}

_MODES: Final = {
    "hami-core": Choice(labels={_ISOLATION: _HAMI_CORE}),
    "mig": Choice(refused=_INSTANCES),
    "mps": Choice(refused=_NO_MPS),
}

HAMI: Final = System(
    name="HAMi",
    page="hami",
    images=("projecthami/",),
    opt_out="hami.io/webhook=ignore",
    differs=(
        _EACH_CARD,
        _COUNTED_PARTS,
        _QUOTAS,
        _LIMITS,
        "a pod cannot set a policy for nodes and cards. The profile of its scheduler name sets it",
    ),
    schedulers=("hami-scheduler",),
    words=(
        Word(
            name="nvidia.com/gpu",
            role=Role.CARDS,
            means="number of cards, if the container also requests another of these resources",
            by_plugin=True,
            renamed=_SHARED,
            only_with=True,
        ),
        Word(name="nvidia.com/gpumem", role=Role.MEMORY, means="MiB of each card", unit=MIB, is_set=True),
        Word(
            name="nvidia.com/gpumem-percentage",
            role=Role.PERCENT,
            means="hundredths of each card's memory, if there is no `gpumem`",
        ),
        Word(name="nvidia.com/gpucores", role=Role.CORES, means="hundredths of each card's cores"),
        Word(
            name="nvidia.com/priority",
            role=Role.CHOICE,
            means="whether the limit of cores always applies (1), or only next to other tasks of this priority (0)",
            choices={
                "1": Choice(),
                "0": Choice(refused='remove it, and set the variable CUDA_TASK_PRIORITY: "0" in the container'),
            },
        ),
        _annotation("nvidia.com/use-gputype", Role.MODELS, "parts of model names: one must match", strip="NVIDIA-"),
        _annotation(
            "nvidia.com/nouse-gputype",
            Role.NO_MODELS,
            "parts of model names: none must match",
            strip="NVIDIA-",
        ),
        _annotation("nvidia.com/use-gpuuuid", Role.UUIDS, "the cards that are allowed"),
        _annotation("nvidia.com/nouse-gpuuuid", Role.NO_UUIDS, "the cards that are not allowed"),
        _annotation("nvidia.com/vgpu-mode", Role.CHOICE, "how a card is divided", choices=_MODES),
        _annotation(
            "nvidia.com/numa-bind",
            Role.CHOICE,
            "whether all cards are on one NUMA node",
            choices={"true": Choice(annotations=_TOPOLOGY["numa"]), "false": Choice()},
        ),
        _annotation("hami.io/node-scheduler-policy", Role.CHOICE, "which node is preferred", choices=_PACKING),
        _annotation(
            "hami.io/gpu-scheduler-policy",
            Role.CHOICE,
            "which cards of a node are preferred",
            choices={
                **_PACKING,
                "topology-aware": Choice(annotations=_TOPOLOGY["nvlink"]),
                "numa": Choice(annotations={names.GPU_TOPOLOGY: "numa", names.GPU_TOPOLOGY_POLICY: "preferred"}),
                "mutex": Choice(refused=f"request whole cards, such as {names.PREFIX}{names.GPU}: 100"),
            },
        ),
        _annotation(
            "hami.io/device-scoring-weights",
            Role.NO_EFFECT,
            "how much each property of a card counts when a card is chosen",
            answer=_OWN_PROFILE,
        ),
        *_refused(
            (
                "hygon.com/dcunum",
                "hygon.com/dcumem",
                "hygon.com/dcucores",
                "cambricon.com/vmlu",
                "cambricon.com/mlu.smlu.vmemory",
                "cambricon.com/mlu.smlu.vcore",
                "iluvatar.ai/vgpu",
                "iluvatar.ai/vcuda-core",
                "iluvatar.ai/vcuda-memory",
                "iluvatar.ai/MR-V100-vgpu",
                "mthreads.com/vgpu",
                "mthreads.com/sgpu-memory",
                "mthreads.com/sgpu-core",
                "metax-tech.com/sgpu",
                "metax-tech.com/vcore",
                "metax-tech.com/vmemory",
                "enflame.com/vgcu",
                "enflame.com/vgcu-percentage",
                "kunlunxin.com/vxpu",
                "kunlunxin.com/vxpu-memory",
                "huawei.com/Ascend310P-memory",
                "huawei.com/Ascend910A-memory",
                "huawei.com/Ascend910B-memory",
                "huawei.com/Ascend910B2-memory",
                "huawei.com/Ascend910B3-memory",
                "huawei.com/Ascend910B4-memory",
            ),
            "a part of another vendor's card",
            _OTHER_VENDOR,
        ),
    ),
)

KAI: Final = System(
    name="KAI, Run:ai",
    page="kai",
    schedulers=("kai-scheduler", "runai-scheduler"),
    images=("kai-scheduler/", "runai/", "run-ai"),
    differs=(
        "in KAI, annotations of the pod request cards. `migrate` writes these requests into the limits of a container",
        "a fraction of a card may have at most two decimals, because Berth counts in hundredths",
        "Berth does not write the status of KAI's PodGroups, only the status of its own",
        _NO_QUEUES,
        _LIMITS,
    ),
    pod_groups=(
        PodGroupKind(
            group="scheduling.run.ai",
            version="v2alpha2",
            lost={
                "queue": _QUEUE,
                "subGroups": _NO_SUBGROUPS,
                "topologyConstraint": _TOPOLOGY_KEYS,
                "priorityClassName": _PRIORITY,
                "preemptibility": _PREEMPTS,
                "markUnschedulable": "a waiting pod shows the reason in its condition PodScheduled",
                "schedulingBackoff": _BACKOFF,
            },
        ),
    ),
    needs_memory=True,
    words=(
        _annotation("gpu-fraction", Role.FRACTION, "part of each card's memory, such as 0.5"),
        _annotation("gpu-memory", Role.MEMORY, "MiB of each card", unit=MIB),
        _annotation("gpu-fraction-num-devices", Role.CARDS, "number of cards"),
        _annotation("gpu-fraction-container-name", Role.CONTAINER, "the container that gets the cards"),
        _annotation("gpu-fraction.limit", Role.REFUSED, "the maximum part of a card's memory", answer=_LIMIT),
        _annotation("gpu-memory.limit", Role.REFUSED, "the maximum MiB of a card", answer=_LIMIT),
        _annotation(
            "gpu-sm-percentage",
            Role.REFUSED,
            "the maximum hundredths of a card's cores",
            answer=f"request {names.PREFIX}{names.GPU_CORE} next to {names.PREFIX}{names.GPU_MEMORY_RATIO}",
        ),
        _annotation(
            "mps",
            Role.CHOICE,
            "whether the card is shared by MPS",
            choices={"false": Choice(), "true": Choice(refused=_NO_MPS)},
        ),
        _annotation("pod-group-name", Role.GROUP_OBJECT, "the name of the pod's PodGroup"),
        _annotation(
            "kai.scheduler/batch-min-member",
            Role.REFUSED,
            "how many members a Job's group needs",
            answer=_OWN_MINIMUM,
        ),
        _label(
            "kai.scheduler/subgroup-name",
            Role.NO_EFFECT,
            "a part of the group",
            answer=_NO_SUBGROUPS,
        ),
        _label("kai.scheduler/queue", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
        _label("runai/queue", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
        _label(
            "kai.scheduler/node-pool",
            Role.REFUSED,
            "the nodes on which the pod may run",
            answer="write it as spec.nodeSelector",
        ),
        _annotation(
            "kai.scheduler/topology-required-placement",
            Role.REFUSED,
            "the level of the topology within which the group must be",
            answer="write a required podAffinity of the members with the level's label as its topologyKey",
        ),
        _annotation(
            "kai.scheduler/topology-preferred-placement",
            Role.NO_EFFECT,
            "the level of the topology within which the group should be",
            answer="members are placed close together in any case, by the profile's gang.topologyKeys",
        ),
    ),
)

_VOLCANO_SCHEDULERS: Final = ("volcano",)

VOLCANO: Final = System(
    name="Volcano",
    page="volcano",
    schedulers=_VOLCANO_SCHEDULERS,
    images=("volcanosh/", "volcano-vgpu-device-plugin"),
    differs=(
        _EACH_CARD,
        _QUOTAS,
        "Berth does not read Jobs of `batch.volcano.sh`. Use a Job of `batch/v1` for each task, and one PodGroup",
        "Berth does not write the status of Volcano's PodGroups, only the status of its own",
        _NO_QUEUES,
        _LIMITS,
    ),
    cards=0,
    pod_groups=(
        PodGroupKind(
            group="scheduling.volcano.sh",
            version="v1beta1",
            lost={
                "queue": _QUEUE,
                "minTaskMember": _NO_SUBGROUPS,
                "minResources": _MIN_RESOURCES,
                "subGroupPolicy": _NO_SUBGROUPS,
                "networkTopology": _TOPOLOGY_KEYS,
                "priorityClassName": _PRIORITY,
            },
        ),
    ),
    words=(
        Word(name="volcano.sh/vgpu-number", role=Role.CARDS, means="number of cards"),
        Word(name="volcano.sh/vgpu-memory", role=Role.MEMORY, means="MiB of each card", unit=MIB, is_set=True),
        Word(
            name="volcano.sh/vgpu-memory-percentage",
            role=Role.PERCENT,
            means="hundredths of each card's memory, if there is no `vgpu-memory`",
        ),
        Word(name="volcano.sh/vgpu-cores", role=Role.CORES, means="hundredths of each card's cores"),
        _annotation("volcano.sh/vgpu-mode", Role.CHOICE, "how a card is divided", choices=_MODES),
        _annotation("volcano.sh/vgpu-use-gpuuuid", Role.UUIDS, "the cards that are allowed"),
        _annotation("volcano.sh/vgpu-nouse-gpuuuid", Role.NO_UUIDS, "the cards that are not allowed"),
        _annotation(
            "volcano.sh/vgpu-podgroup-policy",
            Role.CHOICE,
            "whether the members of a group get different cards",
            choices={
                "spread": Choice(
                    refused="request whole cards, or put the members on different nodes by a topologySpreadConstraint"
                )
            },
        ),
        _annotation("scheduling.k8s.io/group-name", Role.GROUP_OBJECT, "the name of the pod's PodGroup"),
        _annotation("scheduling.volcano.sh/group-name", Role.GROUP_OBJECT, "the name of the pod's PodGroup"),
        _annotation(
            "scheduling.volcano.sh/group-min-member",
            Role.REFUSED,
            "how many members the group of a controller's pods needs",
            answer=_OWN_MINIMUM,
        ),
        _annotation("volcano.sh/task-spec", Role.NO_EFFECT, "a part of the group", answer=_NO_SUBGROUPS),
        _annotation("volcano.sh/queue-name", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
        _annotation("scheduling.volcano.sh/queue-name", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
        _label("volcano.sh/queue-name", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
        _annotation(
            "volcano.sh/preemptable",
            Role.NO_EFFECT,
            "whether other pods may preempt the pod",
            answer=_PREEMPTS,
        ),
    ),
)

VOLCANO_SHARE: Final = System(
    name="Volcano",
    schedulers=_VOLCANO_SCHEDULERS,
    needs_memory=True,
    words=(Word(name="volcano.sh/gpu-memory", role=Role.MEMORY, means="MiB of one card", unit=MIB, is_set=True),),
)

VOLCANO_NUMBER: Final = System(
    name="Volcano",
    schedulers=_VOLCANO_SCHEDULERS,
    words=(Word(name="volcano.sh/gpu-number", role=Role.CARDS, means="number of whole cards"),),
)

_GANG: Final = names.GANG_PREFIX

KOORDINATOR: Final = System(
    name="Koordinator",
    schedulers=("koord-scheduler",),
    images=("koordinator-sh/",),
    drain=False,
    pod_groups=(
        PodGroupKind(group="scheduling.sigs.k8s.io", version="v1alpha1", lost={"minResources": _MIN_RESOURCES}),
    ),
    words=(
        _annotation(f"{_GANG}name", Role.GROUP, "the pod's group"),
        _annotation(f"{_GANG}min-available", Role.MIN_MEMBER, "how many members the group needs"),
        _annotation(
            f"{_GANG}total-number",
            Role.NO_EFFECT,
            "how many members the group has",
            answer=("Berth places the group when its minimum fits, and each further member when it is created"),
        ),
        _annotation(
            f"{_GANG}waiting-time",
            Role.NO_EFFECT,
            "how long the group may wait",
            answer=("a waiting group holds nothing and may wait; --gang-timeout limits only the time of its binds"),
        ),
        _annotation(
            f"{_GANG}mode",
            Role.CHOICE,
            "what happens to the other members if one does not fit",
            choices={
                "Strict": Choice(),
                "NonStrict": Choice(note="a waiting group holds nothing, as with Strict"),
            },
        ),
        _annotation(
            f"{_GANG}match-policy",
            Role.CHOICE,
            "which members count",
            choices={
                "once-satisfied": Choice(),
                "waiting-and-running": Choice(
                    note="once the minimum is bound, members that end do not affect the others, as with once-satisfied"
                ),
                "only-waiting": Choice(refused="remove it: members that are bound count, too"),
            },
        ),
        _annotation(
            f"{_GANG}groups",
            Role.REFUSED,
            "several groups that start together",
            answer=(
                f"make them one group: write on all pods the same {names.POD_GROUP}, and the sum as "
                f"{names.POD_GROUP_MIN_MEMBER}"
            ),
        ),
        _annotation(
            f"{_GANG}network-topology-spec",
            Role.MENTION,
            "how close together the members are placed",
            choices={
                "MustGather": Choice(
                    refused="write a required podAffinity of the members with the layer's label as its topologyKey"
                ),
                "PreferGather": Choice(
                    note="members are placed close together in any case, by the profile's gang.topologyKeys"
                ),
            },
        ),
        _annotation(
            f"{_GANG}network-topology-index",
            Role.NO_EFFECT,
            "the member's rank",
            answer=("members are placed close together, in no order"),
        ),
        _annotation(
            "scheduling.koordinator.sh/reservation-affinity",
            Role.REFUSED,
            "the pod runs in a reservation",
            answer="Berth has no reservations: remove it, or leave the pod to Koordinator's scheduler",
        ),
        _label("quota.scheduling.koordinator.sh/name", Role.NO_EFFECT, "the quota that the pod uses", answer=_QUEUE),
        _label("quota.scheduling.koordinator.sh/tree-id", Role.NO_EFFECT, "the tree of that quota", answer=_QUEUE),
        _label(
            _ISOLATION,
            Role.CHOICE,
            "the library that limits containers to their parts of cards",
            choices={_HAMI_CORE: Choice(kept=True)},
        ),
    ),
)

ALIYUN: Final = System(
    name="Aliyun",
    page="aliyun",
    images=("gpushare-device-plugin", "k8s-gpushare", "gpushare-scheduler-extender"),
    differs=(
        "memory and cores are totals of all cards, as in Berth",
        "if Aliyun's device plugin has another unit of memory than 1 GiB, set this unit with Berth's `--memory-units`",
        _LIMITS,
    ),
    total=True,
    needs_memory=True,
    words=(
        Word(name="aliyun.com/gpu-mem", role=Role.MEMORY, means="GiB of all cards together", unit=GIB, is_set=True),
        Word(name="aliyun.com/gpu-core.percentage", role=Role.CORES, means="hundredths of all cards' cores together"),
        Word(name="aliyun.com/gpu-count", role=Role.CARDS, means="number of cards"),
        _label("aliyun.com/gpu-count", Role.CARDS, "number of cards"),
    ),
)

TENCENT: Final = System(
    name="Tencent",
    page="tencent",
    images=("gpu-manager", "gpu-admission"),
    differs=(
        "a pod that requests 100 hundredths or more gets whole cards, and its amount of memory has no effect",
        _LIMITS,
    ),
    needs_memory=True,
    words=(
        Word(
            name="tencent.com/vcuda-core",
            role=Role.HUNDREDTHS,
            means="below 100: hundredths of a card's cores; from 100 on: hundredths of whole cards",
        ),
        Word(
            name="tencent.com/vcuda-memory",
            role=Role.MEMORY,
            means="blocks of 256 MiB of a card's memory; no effect for whole cards",
            unit=256 * MIB,
        ),
        _annotation("tencent.com/vcuda-core-limit", Role.REFUSED, "the maximum hundredths of cores", answer=_LIMIT),
    ),
)

OTHERS: Final = System(
    name="AWS",
    words=_refused(
        ("k8s.amazonaws.com/vgpu",),
        "a tenth of a card, by MPS",
        f"request {names.PREFIX}{names.GPU_MEMORY_RATIO}: 10 instead",
    ),
)

_YUNIKORN: Final = "yunikorn.apache.org/"

YUNIKORN: Final = System(
    name="YuniKorn",
    schedulers=("yunikorn",),
    drain=False,
    words=(
        _annotation(f"{_YUNIKORN}task-group-name", Role.TASK_GROUP, "the part of the application's group"),
        _annotation(
            f"{_YUNIKORN}task-groups",
            Role.TASK_GROUPS,
            "all parts of the application's group, each with its `minMember`",
        ),
        _annotation(
            f"{_YUNIKORN}schedulingPolicyParameters",
            Role.NO_EFFECT,
            "how long the group may wait, and what happens then",
            answer="a waiting group holds nothing and may wait; --gang-timeout limits only the time of its binds",
        ),
        _annotation(f"{_YUNIKORN}queue", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
        _label(f"{_YUNIKORN}queue", Role.NO_EFFECT, _QUEUE_MEANS, answer=_QUEUE),
    ),
)

ARMADA: Final = System(
    name="Armada",
    drain=False,
    words=(
        _annotation("armadaproject.io/gangId", Role.GROUP, "the pod's gang"),
        _annotation("armadaproject.io/gangCardinality", Role.MIN_MEMBER, "how many members the gang has"),
        _annotation(
            "armadaproject.io/gangNodeUniformityLabel",
            Role.REFUSED,
            "the label whose value all nodes of the gang share",
            answer="write a required podAffinity of the members with this label as its topologyKey",
        ),
    ),
)

GODEL: Final = System(
    name="Godel",
    schedulers=("godel-scheduler",),
    drain=False,
    pod_groups=(
        PodGroupKind(
            group="scheduling.godel.kubewharf.io",
            version="v1alpha1",
            lost={
                "priorityClassName": _PRIORITY,
                "application": "",
                "affinity": "write a podAffinity or podAntiAffinity in the pods",
            },
        ),
    ),
    words=(_annotation("godel.bytedance.com/pod-group-name", Role.GROUP_OBJECT, "the name of the pod's PodGroup"),),
)

_HIVED: Final = "hivedscheduler.microsoft.com/"
_INSTEAD_OF_HIVED: Final = (
    f"request GPUs by {names.NVIDIA_PREFIX}{names.GPU}, their model by the annotation {names.MODEL_GLOBS}, and a group "
    f"by the annotations {names.POD_GROUP} and {names.POD_GROUP_MIN_MEMBER}"
)

HIVED: Final = System(
    name="HiveD",
    drain=False,
    words=(
        _annotation(
            f"{_HIVED}pod-scheduling-spec",
            Role.REFUSED,
            "the pod's virtual cluster, cards and group",
            answer=_INSTEAD_OF_HIVED,
        ),
        *_refused((f"{_HIVED}pod-scheduling-enable",), "whether HiveD places the pod", _INSTEAD_OF_HIVED),
    ),
)

TABLE: Final = Table(
    (
        *(HAMI, KAI, VOLCANO, VOLCANO_SHARE, VOLCANO_NUMBER, KOORDINATOR, YUNIKORN, ALIYUN, TENCENT, OTHERS),
        *(ARMADA, GODEL, HIVED),
    )
)
