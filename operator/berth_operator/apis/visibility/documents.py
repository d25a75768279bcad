"""The discovery and OpenAPI documents of the visibility API; pure."""

from typing import Final

from berth_operator.apis.aggregated import discovery, openapi
from berth_operator.apis.aggregated.openapi import (
    Schema,
    of_flag,
    of_list,
    of_map,
    of_number,
    of_object,
    of_text,
    of_texts,
)
from berth_operator.apis.visibility.kinds import EXPLANATION, EXPLANATIONS, GROUP, KINDS, PODS, SETTINGS, VERSION

_AMOUNTS: Final = of_map(
    "Resource -> amount.", of_number("Memory is in bytes, cpu in thousandths, gpu-core in hundredths.")
)
_HELPS: Final = of_flag("Whether it names a way to end the wait.")
_GANG_FIELDS: Final[dict[str, Schema]] = {
    "name": of_text("Name of the group."),
    "members": of_number("Members that wait or have a node."),
    "required": of_number("Members that must be placed, or none is."),
}
_GANG: Final = "The pod group; of a Workload the pods with a place, and all pods. Absent for single pods."
_FREE: Final = of_object("A resource of the Node.", total=of_number("Allocatable."), free=of_number("Not requested."))

_SCHEMAS: Final[dict[str, Schema]] = {
    "FleetNode": of_object(
        "A node with a Device, its cards and what is free. It names no pods.",
        ready=of_flag("Whether the Node is ready."),
        schedulable=of_flag("Whether the Node is not cordoned."),
        reporting=of_flag("Whether the agent renews its Lease."),
        blocked=of_text("Why some or all devices are not allocated there; empty if they are."),
        promised=of_number("Places that are promised to pods which do not exist yet; they are not free."),
        models=of_map("Model -> number of devices.", of_number("Devices.")),
        zone=of_text("Label topology.kubernetes.io/zone."),
        rack=of_text("The label of the narrowest topology domain above the node that gangs are placed in."),
        isolation=of_text("Label berth.dev/isolation: mps if pods share its GPUs by MPS alone."),
        devices=of_list(
            "What the Device lists.",
            of_object(
                "One card.",
                type=of_text("gpu, rdma, fpga, or a type of a plug-in."),
                minor=of_number("Its number on the node."),
                id=of_text("UUID of a GPU, PCI address of others."),
                model=of_text("Model as the driver reports it."),
                healthy=of_flag("Whether it, or its instances, can be allocated."),
                message=of_text("The faults that the agent reports."),
                blocked=of_text("Why nothing of it is allocated although it is healthy; empty if it can be."),
                barred=of_text("Why it is not given by name, such as for ResourceClaims; absent if it is."),
                total=_AMOUNTS,
                free=_AMOUNTS,
                held=of_number("How much of it is held, in hundredths; the resource of which most is held counts."),
                users=of_number("Number of grants of pods."),
                unheld=of_number("Number of pods that use it and do not hold it; absent if it is 0."),
                numaNode=of_number("-1 if it is not known."),
                pcie=of_text("The PCIe switch; empty if it is not known."),
                mig=of_list(
                    "MIG instances.",
                    of_object(
                        "One instance.",
                        profile=of_text("Its profile."),
                        minor=of_number("The card."),
                        free=of_flag("Whether it can be allocated."),
                    ),
                ),
                links=of_map("Id of another card -> kind of link.", of_text("Kind of link.")),
                metrics=of_object(
                    "What was measured; absent if that is not known, or too old.",
                    utilization=of_number("Share of the time in which a kernel ran, 0 to 1.", whole=False),
                    memoryUsed=of_number("Bytes."),
                    power=of_number("Watts.", whole=False),
                ),
            ),
        ),
        resources=of_map("cpu, memory and pods.", _FREE),
    ),
    "QueuedPod": of_object(
        "A pod that waits for a node, or a Workload of Kueue that waits for places.",
        position=of_number(
            "1 is tried next; counts the pods of all namespaces. 0 of a pod with scheduling gates, and of a Workload."
        ),
        state=of_text("active, backoff, unschedulable or gated."),
        priority=of_number("The pod's priority."),
        waitingSeconds=of_number("Seconds since its creation, when this was rendered."),
        scheduler=of_text("The pod's schedulerName."),
        requests=_AMOUNTS,
        backoffSeconds=of_number("Seconds until it is active again; 0 if it does not back off.", whole=False),
        wakesOn=of_texts("The events after which it is tried again."),
        message=of_text("Why it waits."),
        gang=of_object(_GANG, **_GANG_FIELDS),
        reservedNode=of_text("The node that is reserved for it."),
    ),
    "Holder": of_object(
        "A pod that holds devices, or a place with devices that is promised to one.",
        node=of_text("Its node."),
        owner=of_object("Its controller.", kind=of_text("Empty for none."), name=of_text("Name.")),
        scheduler=of_text("The pod's schedulerName."),
        since=of_text("When kubelet started it; empty if that is not known."),
        endsBy=of_text("When it has ended at the latest (activeDeadlineSeconds); empty if that is not limited."),
        devices=of_list(
            "The devices.",
            of_object(
                "A device, or a part of one.",
                type=of_text("Type of device."),
                minor=of_number("The card; negative if the Device no longer lists it."),
                id=of_text("The device, instance or replica."),
                model=of_text("Model of the card."),
                amounts=_AMOUNTS,
                card=of_map(
                    "Of an instance or replica: what its card has of instances, by profile, or replicas.",
                    of_number("Instances or replicas."),
                ),
            ),
        ),
        drifted=of_flag("Whether it holds other devices than it was allocated."),
        promised=of_flag("Whether the pod does not exist yet: its owner is the Workload to which it was promised."),
        isolation=of_text("What limits its containers to their shares, mps or hami-core; empty for nothing."),
        exceeding=of_list(
            "Cards of which its processes use more memory than its share, by more than 1 GiB.",
            of_object(
                "A card.",
                type=of_text("Type of device."),
                minor=of_number("The card."),
                memory=of_number("Bytes in use, rounded up to 1 GiB."),
                limit=of_number("Bytes of its share."),
            ),
        ),
    ),
    EXPLANATION: of_object(
        "Why a pod waits.",
        state=of_text("Waiting, BackingOff, Active, Gated, Binding, Bound or NotManaged."),
        message=of_text("The message of its condition PodScheduled, or why there is none."),
        nodes=of_number("Number of nodes that the decision considered."),
        groups=of_list(
            "Nodes that are rejected for the same reasons, the largest group first.",
            of_object(
                "A group of nodes.",
                reasons=of_texts("The reasons of all filters that reject these nodes."),
                counted=of_texts("The reasons that the condition counts."),
                filters=of_texts("The filters."),
                count=of_number("Number of nodes."),
                nodes=of_texts("The first names."),
            ),
        ),
        nearest=of_list(
            "The nodes that lack least.",
            of_object(
                "A node.",
                node=of_text("Its name."),
                resources=_AMOUNTS,
                cards=of_list(
                    "Cards that must become free, wholly or in part.",
                    of_object(
                        "A card.",
                        type=of_text("Type of device."),
                        minor=of_number("The card."),
                        amounts=_AMOUNTS,
                    ),
                ),
            ),
        ),
        claims=of_object(
            "What the requests of its ResourceClaims find; absent unless claims keep it from a node.",
            nodes=of_number("Nodes that were compared: if there are any, those that only the claims keep it from."),
            complete=of_flag("Whether these are all; comparing devices ends after a number of them."),
            together=of_text("Why a node that has enough for each request alone does not take it; empty for none."),
            requests=of_list(
                "The requests that have to be met on one node, each subrequest of its own.",
                of_object(
                    "A request.",
                    claim=of_text("namespace/name of the claim, or the extended resource that a DeviceClass provides."),
                    request=of_text("Its name, or request/subrequest."),
                    needed=of_number("Devices; 0 for all that match."),
                    devices=of_number("Devices that were compared with it."),
                    found=of_number("Of these, the devices that match and are free."),
                    most=of_number("The most that match and are free on one node."),
                    nodes=of_texts("The first of the nodes with the most."),
                    enough=of_number("Nodes that have enough for this request alone."),
                    matching=of_number("The most on one node that match, free or not."),
                    leftOut=of_list(
                        "Why it does not find the others, the largest number first.",
                        of_object(
                            "Devices that are left out for one reason.",
                            devices=of_number("How many."),
                            why=of_text("What these devices are, as the end of a sentence."),
                            selector=of_flag("Whether a selector leaves them out, the first that does not match."),
                        ),
                    ),
                ),
            ),
        ),
        fitsNow=of_flag(
            "Whether it would be placed now; of a gang with more than 16 waiting members false, as that is not tried."
        ),
        fitsWhenEmpty=of_number(
            "Nodes that would take it, a member alone, if in service and without pods; absent if none matters yet."
        ),
        newNodeHelps=of_flag("Whether another node like one of these, without a difference, would take it."),
        remedies=of_list(
            "Changes of the cluster, and whether each of them ends the wait if nothing else changes.",
            of_object(
                "A change.",
                kind=of_text("Member, Claim, Label, NewNode, Capacity, End, Preemption or Administrator."),
                answer=of_text("Ends, Needed (without it no other change helps) or DoesNotHelp."),
                message=of_text("The change and the answer, with what was assumed."),
                node=of_text("The node that changes, or that the new node is like; may be empty."),
                newNode=of_flag("Whether a node is added."),
            ),
        ),
        outlook=of_list(
            "What is said of the wait, one answer for each question.",
            of_object(
                "An answer.",
                title=of_text("The question: Fits, New node, In vain or Preemption."),
                message=of_text("The answer."),
                helps=_HELPS,
            ),
        ),
        changes=of_object(
            "What is said of single changes other than new nodes, or why none is tried; absent if nothing is.",
            title=of_text("The title."),
            answers=of_list(
                "The changes, that none was found that ends the wait, or that none was tried.",
                of_object("A change.", message=of_text("The change and the answer."), helps=_HELPS),
            ),
        ),
        inVain=of_flag("Whether no change of the cluster can end the wait: only another pod can be placed."),
        preemption=of_object(
            "Whether evictions would help; absent for gangs, and where they are never tried.",
            possible=of_flag("Whether they would."),
            message=of_text("How many pods, or why not."),
        ),
        gang=of_object(
            _GANG,
            **_GANG_FIELDS,
            firstWithoutPlace=of_text(
                "The first member without a place; empty if all have one, or the group has too few."
            ),
        ),
        reservation=of_object(
            "Its node reservation.", node=of_text("The node."), message=of_text("What it waits for.")
        ),
        queue=of_object(
            "Its place in the queue; absent when bound.",
            position=of_number("1 is tried next."),
            of=of_number("Number of pods in the queue."),
            state=of_text("active, backoff or unschedulable."),
            backoffSeconds=of_number("Seconds until it is active again.", whole=False),
            wakesOn=of_texts("The events after which it is tried again."),
        ),
        bind=of_object(
            "Why it was bound to its node; absent while it waits.",
            kept=of_flag("Whether the leader keeps the points: it does for its last 1,000 binds."),
            message=of_text("Why the points are not kept; empty if they are."),
            node=of_text("The node."),
            scores=of_list(
                "The node and up to two runners-up.",
                of_object(
                    "A node.",
                    node=of_text("Its name."),
                    total=of_number("The sum of the points, by which nodes are compared.", whole=False),
                    terms=of_map("Score -> weighted points.", of_number("Points.", whole=False)),
                ),
            ),
        ),
    ),
    SETTINGS: of_object(
        "The operator's settings that decide about pods, with `settings=true`.",
        configuration={"type": "object", "description": "The profiles in use, as a BerthSchedulerConfiguration."},
        memoryUnits=of_map(
            "Resource of another system -> the unit of its memory, where it is not the usual one.", of_number("Bytes.")
        ),
        geniusPriorities=of_map(
            "Namespace, or * for all others -> the highest `genius/priority` of its pods.", of_number("0 for none.")
        ),
        trustedSchedulers=of_texts("Other schedulers whose allocations are trusted; of the fleet alone, as all below."),
        nodeSelector=of_text("Label selector of the nodes; empty for all."),
        agentNamespace=of_text("Namespace of the agents' Leases."),
        chargeForeign=of_flag("Whether cards that processes outside Kubernetes use are kept from pods."),
        chargeUnheld=of_flag("Whether cards that pods use which do not hold them are kept from other pods."),
        podMix={"type": "object", "description": "What the pods that the leader has seen request, for simulations."},
    ),
}
_EXPLANATION_RESOURCE: Final[discovery.Document] = {
    "name": f"{PODS}/{EXPLANATIONS}",
    "singularName": "",
    "namespaced": True,
    "kind": EXPLANATION,
    "verbs": ["get"],
}

DOCUMENTS: Final = {
    **discovery.documents(GROUP, VERSION, [*map(discovery.resource, KINDS), _EXPLANATION_RESOURCE]),
    **openapi.documents(GROUP, VERSION, _SCHEMAS, KINDS),
}
"""Path -> document."""
