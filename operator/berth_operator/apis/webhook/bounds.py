"""What a review may contain: the loop answers one at a time, so the work for one is bounded.

An API server accepts 3 MiB of a request, in which a pod may have 100,000 containers. Its webhooks see the pod before
it is validated, with the defaults of each container. Berth counts first. No kubelet runs a pod of this size.

Mutation denies the pod, as the API server does if the webhook does not answer (`failurePolicy: Fail`). If Berth
admitted the pod unchanged, containers without the injected variable could see all GPUs. Validation is not required
(`failurePolicy: Ignore`), so it admits the object with a warning.
"""

from typing import Any, Final

from berth_api.admission.injection import Object

MAX_SEPARATORS: Final = 400_000
"""Commas and opening brackets in a body, outside its strings: at least as many as its values. Also its strings. Parsing
takes up to 30 ms."""
MAX_CONTAINERS: Final = 1000
"""Containers of a pod of any scheduler, in all its lists. For Berth's own pods, `pod_limits` has a lower limit."""
MAX_ENTRIES: Final = 30_000
"""Values in the object of a review, without its `managedFields`, which nothing reads. They take up to 0.1 s."""
SEPARATORS: Final = b",[{"
OTHERS: Final = bytes(set(range(256)) - {*SEPARATORS, *b'"'})
"""All bytes but separators and quotes."""
LISTS: Final = ("containers", "initContainers", "ephemeralContainers")


class ReviewTooLargeError(ValueError):
    """A review has more than Berth reads. The text names what, and how many are allowed."""


def check_body(body: bytes) -> None:
    """Check a body before it is parsed.

    Raises:
        ReviewTooLargeError: it has too many values.
    """
    if sum(map(body.count, SEPARATORS)) > MAX_SEPARATORS and separators(body) > MAX_SEPARATORS:
        raise ReviewTooLargeError(
            f"the review has more than {MAX_SEPARATORS} values, which is the most that Berth reads"
        )


def separators(body: bytes) -> int:
    """Return how many separators a body has outside its strings; if it has too many strings, return their number.

    The annotation or variable of a valid pod may hold a large list. The time is linear in the body's size, up to 0.1 s
    for 8 MiB of any bytes, and the count is right up to the first byte that is not JSON.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # Two quotes in sequence end one string and begin another, or are an empty one.
    marks = unescaped.translate(None, OTHERS).replace(b'""', b"")
    strings = marks.count(b'"') // 2
    return strings if strings > MAX_SEPARATORS else sum(map(len, marks.split(b'"')[::2]))


def problem(review: Object) -> str:
    """Return what a parsed review has too many of; empty if it is within the bounds."""
    for part in (review.get("object"), review.get("oldObject")):
        if count := _containers(part):
            return f"spec: {count} containers; allowed are at most {MAX_CONTAINERS}"
        if _has_many_values(part):
            return f"the object has more than {MAX_ENTRIES} values, which is the most that Berth reads"
    return ""


def _containers(part: Any) -> int:
    """Return how many containers an object or its template has, if that is too many; 0 otherwise."""
    left = [part]
    while left:
        value = left.pop()
        if not isinstance(value, dict):
            continue
        lists = [value[name] for name in LISTS if isinstance(value.get(name), list)]
        if (count := sum(map(len, lists))) > MAX_CONTAINERS:
            return count
        left += [value[name] for name in ("spec", "template", "jobTemplate") if name in value]
    return 0


def _has_many_values(part: Any) -> bool:
    left, count = [part], 0
    while left:
        value = left.pop()
        if isinstance(value, dict):
            more = [entry for name, entry in value.items() if name != "managedFields"]
        elif isinstance(value, list):
            more = value
        else:
            continue
        count += len(more)
        if count > MAX_ENTRIES:
            return True
        left += more
    return False
