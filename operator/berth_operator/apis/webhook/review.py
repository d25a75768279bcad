"""AdmissionReviews: the API server's requests and Berth's responses."""

import base64
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, Protocol

import orjson

from berth_api.admission.injection import Object
from berth_api.request.isolation import ALLOWED
from berth_operator.apis.webhook import bounds
from berth_operator.apis.webhook.bindings import BindingValidation
from berth_operator.apis.webhook.mutations import (
    Isolation,
    LateInjection,
    Mutations,
    Rewriting,
    Routing,
    patch,
)
from berth_operator.apis.webhook.validation import Admitted, Validation

VERSION: Final = "admission.k8s.io/v1"
MAX_NAME: Final = 253
"""Characters of an object's name."""

Response = dict[str, Any]
Responder = Callable[[bytes], Response]
"""Returns the response to the body of an AdmissionReview; raises ReviewError."""
AskingResponder = Callable[[bytes], Awaitable[Response]]
"""The same by a request to the API server: the awaitable raises CallError, and does not hold the body."""


class ReviewError(ValueError):
    """A request is not a valid AdmissionReview of what the path is for. The text shows why."""


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


def answer(body: bytes, mutator: Mutator) -> Response:
    """Return the response to an AdmissionReview: the pod is allowed, with a patch.

    Raises:
        ReviewError: the body is not a valid AdmissionReview of a pod.
    """
    with _reading("a pod"):
        request = _request(body)
        uid, pod = request["uid"], request["object"]
        if problem := bounds.problem(request):
            return _verdict(uid, Admitted(denial=problem))
        try:
            operations = patch(pod, mutator.made_of(pod, request.get("oldObject")))
        except ValueError as error:
            raise ReviewError(f"the pod cannot be mutated: {error}") from error
    response: Response = {"uid": uid, "allowed": True}
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(operations)).decode()}
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def validated(body: bytes, validation: Validation) -> Response:
    """Return the response to an AdmissionReview: the pod or template is allowed or denied, perhaps with warnings.

    Raises:
        ReviewError: the body is not a valid AdmissionReview of a pod or template.
    """
    with _reading("a pod or template"):
        request = _request(body)
        problem = bounds.problem(request)
        return _verdict(request["uid"], Admitted(warnings=(problem,)) if problem else validation.judge(request))


def binding_validated(body: bytes, bindings: BindingValidation) -> Awaitable[Response]:
    """Return the coming response to an AdmissionReview: the Binding is allowed or denied.

    What waits for the API server holds only the names.

    Raises:
        ReviewError: the body is not a valid AdmissionReview of a Binding.
        CallError: the pod cannot be read.
    """
    with _reading("a Binding"):
        request = _request(body)
        uid, namespace, name = request["uid"], request["namespace"], request["object"]["metadata"]["name"]
        if max(map(len, (uid, namespace, name))) > MAX_NAME:
            raise ReviewError(f"a name or UID has more than {MAX_NAME} characters")
    return _binding_judged(uid, namespace, name, bindings)


async def _binding_judged(uid: str, namespace: str, name: str, bindings: BindingValidation) -> Response:
    return _verdict(uid, await bindings.judge(namespace, name))


def _request(body: bytes) -> Any:
    """Return the request of an AdmissionReview."""
    bounds.check_body(body)
    return orjson.loads(body)["request"]


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raise a ReviewError in place of the errors of a body that is not an AdmissionReview of this."""
    try:
        yield
    except bounds.ReviewTooLargeError as error:
        raise ReviewError(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"not JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ReviewError(f"not an AdmissionReview of {what}: {error!r}") from error


def _verdict(uid: str, verdict: Admitted) -> Response:
    response: Response = {"uid": uid, "allowed": not verdict.denial}
    if verdict.denial:
        code = HTTPStatus.UNPROCESSABLE_ENTITY
        response["status"] = {"code": code, "reason": "Invalid", "message": verdict.denial}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}
