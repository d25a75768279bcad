"""What the API server asks, and what it is answered."""

import base64
from typing import Any, Final

import orjson

from berth_operator.injection.mutations import Mutations, patch

VERSION: Final = "admission.k8s.io/v1"


class ReviewError(ValueError):
    """A request is no AdmissionReview of a pod; the text says what is wrong."""


def answer(body: bytes, mutations: Mutations) -> dict[str, Any]:
    """Answer an AdmissionReview: the pod may come, with this patch.

    Raises:
        ReviewError: it is none.
    """
    try:
        review = orjson.loads(body)
        asked = review["request"]
        uid, pod = asked["uid"], asked["object"]
        operations = patch(pod, mutations.made_of(pod, asked.get("oldObject")))
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"not JSON: {error}") from error
    except ValueError as error:
        raise ReviewError(f"not to be injected: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ReviewError(f"not an AdmissionReview of a pod: {error!r}") from error
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": _response(uid, operations)}


def _response(uid: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
    if not operations:
        return {"uid": uid, "allowed": True}
    patch = base64.b64encode(orjson.dumps(operations)).decode()
    return {"uid": uid, "allowed": True, "patchType": "JSONPatch", "patch": patch}
