"""Refuses Bindings of other programs by which a pod's containers would see none of the GPUs that they request.

A Binding has only the pod's name, so the pod is read. The API server does not ask about Berth's own Bindings.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

from berth_api.admission import injection
from berth_client.errors import ApiError, Unreachable
from berth_operator.apis.webhook.validation import ACCEPTED, Admitted
from berth_operator.state.objects import allocations

Object = Mapping[str, Any]

REFUSED: Final = (
    "only Berth may bind this pod: without an allocation, its containers see no GPU. Remove the scheduler profile that "
    "has the name of one of Berth's, or the extender's setting `ignorable`"
)


TIMEOUT: Final = 2.0
"""Seconds after which the API server no longer waits for the answer (`timeoutSeconds`); no request lasts longer."""


class PodReader(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingValidation:
    """Validates Bindings that are not Berth's."""

    pods: PodReader

    async def judge(self, namespace: str, name: str) -> Admitted:
        """Return the verdict on the Binding of a pod.

        Raises:
            CallError: the pod cannot be read.
        """
        try:
            async with asyncio.timeout(TIMEOUT):
                pod = await self.pods.get_pod(namespace, name)
        except TimeoutError as error:
            raise Unreachable(f"pod {namespace}/{name} not read within {TIMEOUT:g} s") from error
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return ACCEPTED
        lacks_cards = allocations.lacks_cards(pod, injection.annotations_read(pod["spec"]))
        return Admitted(denial=REFUSED) if lacks_cards else ACCEPTED
