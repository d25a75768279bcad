"""AdmissionReviews: the API server's requests and Berth's responses."""

import base64
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, Protocol

import orjson

from berth_api.admission.injection import Object
from berth_api.request.isolation import ALLOWED
from berth_operator.apis.webhook.mutations import (
    Isolation,
    LateInjection,
    Mutations,
    Rewriting,
    Routing,
    patch,
)
from berth_operator.apis.webhook.validation import Validation

VERSION: Final = "admission.k8s.io/v1"

Responder = Callable[[bytes], dict[str, Any]]
"""Returns the response to the body of an AdmissionReview; raises ReviewError."""


class ReviewError(ValueError):
    """A request is not a valid AdmissionReview of a pod. The text shows why."""


class Mutator(Protocol):
    """What makes the mutated pod of one kind of request."""

    def made_of(self, pod: Object, before: Object | None, /) -> Object:
        """Return the mutated pod; `before` is the pod before an update, None for a new pod."""


def responders(
    mutations: Mutations, routing: Routing, validation: Validation, isolation: Isolation
) -> Mapping[str, Responder]:
    """Return for each path of the webhook what answers the requests.

    A request does not have the labels of the pod's namespace, so each value of `berth.dev/isolation` and of
    `berth.dev/routing` has a path.
    """
    late = LateInjection(mutations=mutations, schedulers=validation.schedulers)
    of_namespaces = {f"/isolate/{mode}": replace(isolation, default=mode) for mode in ALLOWED}
    return {
        **{path: functools.partial(answer, mutator=mode) for path, mode in of_namespaces.items()},
        "/isolate": functools.partial(answer, mutator=isolation),
        "/inject": functools.partial(answer, mutator=mutations),
        "/inject/late": functools.partial(answer, mutator=late),
        "/route": functools.partial(answer, mutator=routing),
        "/route-words": functools.partial(answer, mutator=replace(routing, route="words")),
        "/route-devices": functools.partial(answer, mutator=replace(routing, route="devices")),
        "/rewrite": functools.partial(answer, mutator=Rewriting()),
        "/validate": functools.partial(validated, validation=validation),
    }


def answer(body: bytes, mutator: Mutator) -> dict[str, Any]:
    """Return the response to an AdmissionReview: the pod is allowed, with a patch.

    Raises:
        ReviewError: the body is not a valid AdmissionReview of a pod.
    """
    try:
        review = orjson.loads(body)
        request = review["request"]
        uid, pod = request["uid"], request["object"]
        operations = patch(pod, mutator.made_of(pod, request.get("oldObject")))
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"not JSON: {error}") from error
    except ValueError as error:
        raise ReviewError(f"the pod cannot be mutated: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ReviewError(f"not an AdmissionReview of a pod: {error!r}") from error
    response = {"uid": uid, "allowed": True}
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(operations)).decode()}
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def validated(body: bytes, validation: Validation) -> dict[str, Any]:
    """Return the response to an AdmissionReview: the pod or template is allowed or denied, perhaps with warnings.

    Raises:
        ReviewError: the body is not a valid AdmissionReview of a pod or template.
    """
    try:
        request = orjson.loads(body)["request"]
        uid, verdict = request["uid"], validation.judge(request)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"not JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ReviewError(f"not an AdmissionReview of a pod or template: {error!r}") from error
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.denial}
    if verdict.denial:
        code = HTTPStatus.UNPROCESSABLE_ENTITY
        response["status"] = {"code": code, "reason": "Invalid", "message": verdict.denial}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}
