"""What users do in the life of a cluster: they roll out, scale, start Jobs, lose members of gangs, set quotas."""

from collections.abc import Mapping
from typing import ClassVar

from tests.chaos.faults.base import Family
from tests.chaos.life_workload import (
    LOOSE,
    NEIGHBOUR,
    NEIGHBOURS,
    URGENT,
    WEB,
    WEB_PODS,
    LifeWorkload,
)


class Rollouts(Family):
    """Events that change what is to run."""

    weights: ClassVar[Mapping[str, int]] = {
        "rolled_out": 10,
        "scaled": 6,
        "rolled_out_large": 4,
        "job_started": 12,
        "gang_member_lost": 8,
        "gang_member_failed": 6,
        "urgent_pod": 5,
        "neighbour_scaled": 3,
        "quota_changed": 3,
        "budget_changed": 3,
        "rest": 0,
    }

    @property
    def workload(self) -> LifeWorkload:
        """Return the pods of the site."""
        workload = self.site.workload
        assert isinstance(workload, LifeWorkload)
        return workload

    def rolled_out(self) -> None:
        """Roll out a new version of a Deployment, by the default rolling update."""
        self.site.insist(self.workload.roll)
        self.last(0.5, 2.0)

    def scaled(self) -> None:
        """Scale a Deployment."""
        replicas = self.chance.randint(1, 2 * WEB_PODS)
        self.site.insist(lambda: self.workload.scale(WEB, replicas))
        self.last(0.5, 2.0)

    def rolled_out_large(self) -> None:
        """Roll out a pod that does not fit next to its old version, or perhaps delete the old one that it waits for."""
        if not self.workload.is_large_stuck():
            self.site.insist(self.workload.roll_large)
        elif self.chance.random() < 0.4:
            self.site.insist(self.workload.unstick_large)
        self.last(0.5, 2.0)

    def job_started(self) -> None:
        """Start a Job."""
        pods, parallel, seconds = self.chance.randint(2, 6), self.chance.randint(1, 3), self.chance.randint(2, 15)
        self.site.insist(lambda: self.workload.start_job(pods=pods, parallel=parallel, seconds=seconds))
        self.last(0.3, 1.0)

    def gang_member_lost(self) -> None:
        """End one member of a formed gang, perhaps delete another one, and create new ones in their places."""
        members = self.workload.formed_gang()
        if not members:
            return
        lost = self.chance.sample(members, self.chance.randint(1, max(1, len(members) - 1)))
        if self.chance.random() < 0.5:
            self.site.insist(lambda: self.workload.finish(lost[0], "Succeeded"))
        for pod in lost:
            self.site.insist(lambda pod=pod: self.workload.end(pod))
        self.last(0.1, 1.0)
        for pod in lost:
            self.site.insist(lambda pod=pod: self.workload.replace(pod.gang))

    def gang_member_failed(self) -> None:
        """Fail a member of a formed gang; it stays, and is not replaced."""
        members = self.workload.formed_gang()
        if members:
            self.site.insist(lambda: self.workload.finish(self.chance.choice(members), "Failed"))
        self.last(0.3, 1.0)

    def urgent_pod(self) -> None:
        """Want a pod of a high priority where kube-scheduler has filled a node, or none."""
        replicas = self.chance.choice((0, 1, 1, 2))
        self.site.insist(lambda: self.workload.scale(URGENT, replicas))
        self.last(2.0, 5.0)

    def neighbour_scaled(self) -> None:
        """Scale what kube-scheduler runs on the same node, and change whether taints keep it away."""
        is_stubborn = self.chance.random() < 0.5
        self.site.insist(lambda: self.workload.set_stubborn(is_stubborn=is_stubborn))
        replicas = self.chance.choice((NEIGHBOURS // 2, NEIGHBOURS, NEIGHBOURS))
        self.site.insist(lambda: self.workload.scale(NEIGHBOUR, replicas))
        self.last(0.5, 2.0)

    def quota_changed(self) -> None:
        """Set a small quota for some seconds, or none."""
        self.site.insist(lambda: self.workload.set_quota(self.chance.choice(("12", LOOSE))))
        self.last(1.0, 3.0)
        self.site.insist(lambda: self.workload.set_quota(LOOSE))

    def budget_changed(self) -> None:
        """Let fewer or more pods of a Deployment be evicted."""
        self.site.insist(lambda: self.workload.set_budget(self.chance.randint(0, 2)))
        self.last(0.3, 1.0)

    def rest(self) -> None:
        """Do nothing until the cluster is quiet, so that reasons can be compared."""
        self.workload.rest()
