"""Why a pod holds no device, and which of its fields suggest that it should."""

from typing import Any

import pytest

from berth_api import names
from berth_api.words import no_devices
from tests.objects.builders import pod

NONE = "it holds no device, because it requests none"
HINT = names.ALLOCATE_HINT
GPUS = {"kubernetes.io/gpu": "100"}
CUDA = "which requests no card and numbers the container's own cards from 0; did you mean to leave it out?"
CARDS = "did you mean the resource kubernetes.io/gpu"
LIMITED = {"name": "main", "resources": {"limits": GPUS}}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (pod(requests={"cpu": "1"}), NONE),
        (pod(containers=[{"name": "c", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "3"}]}]),
         f"{NONE}: container c has CUDA_VISIBLE_DEVICES=3, {CUDA}"),
        (pod(containers=[{"name": "c", "env": [{"name": "HIP_VISIBLE_DEVICES", "value": "3"}]}]),
         f"{NONE}: container c has HIP_VISIBLE_DEVICES=3, {CUDA}"),
        (pod(requests={"nvidia.com/gpu": "0"}), f"{NONE}: container main has nvidia.com/gpu: 0"),
        (pod(annotations={names.MODEL_GLOBS: "*H100*"}),
         f"{NONE}: annotation {names.MODEL_GLOBS} has no effect without a request"),
        (pod(annotations={"slurm.schedmd.com/gpu": "2"}),
         f"{NONE}: annotation slurm.schedmd.com/gpu: {CARDS}: 200, in hundredths of a card?"),
        (pod(annotations={"example.com/gpu": "h100"}),
         f"{NONE}: annotation example.com/gpu: {CARDS}, in hundredths of a card?"),
        (pod(annotations={f"{HINT[:-4]}hnit": "{}"}), f"{NONE}: {HINT[:-4]}hnit: did you mean the annotation {HINT}?"),
        (pod(requests={"kubernetes.io/gpu-core": 0, "kubernetes.io/gpu-memory": "0"}, labels={"genius/nubmer": "1"}),
         f"{NONE}: container main has kubernetes.io/gpu-core: 0; container main has kubernetes.io/gpu-memory: 0"),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]),
         "its devices are those of ResourceClaim mine"),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"},
                             {"name": "nic", "resourceClaimTemplateName": "t"}],
             status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]}),
         "its devices are those of ResourceClaims p-gpu-x, nic"),
        (pod(requests={"example.com/gpu": "1"},
             status={"extendedResourceClaimStatus": {"resourceClaimName": "p-extended"}}),
         "its devices are those of ResourceClaim p-extended"),
        (pod(requests=GPUS), ""),
        (pod(containers=[LIMITED]), ""),
        (pod(initContainers=[LIMITED]), ""),
        (pod(labels={names.GENIUS_NUMBER: "1"}), ""),
    ],
)  # fmt: skip
def test_what_is_said(raw: Any, message: str) -> None:
    assert no_devices.why_none(raw) == message
