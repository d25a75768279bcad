"""The user that the headers of the front proxy name, and the API server's reviews of a request."""

from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from berth_client.reviews import ACCESS_REVIEWS, Reviews, User
from berth_operator.apis.aggregated.access import Access, FrontProxy, FrontProxyError, Headers
from berth_operator.apis.aggregated.statuses import StatusError

DATA = {
    "requestheader-client-ca-file": "PEM",
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}
PROXY = {"subject": ((("organizationName", "o"),), (("commonName", "front-proxy-client"),))}
OTHER = {"subject": ((("commonName", "kubelet"),),)}


def headers(*pairs: tuple[str, str]) -> Headers:
    return CIMultiDictProxy(CIMultiDict(pairs))


FULL = headers(
    ("x-remote-user", "ann"),
    ("X-Remote-Uid", "7"),
    ("X-Remote-Group", "dev"),
    ("X-Remote-Group", "system:authenticated"),
    ("X-Remote-Extra-Scopes", "a"),
    ("X-Remote-Extra-Scopes", "b"),
    ("X-Remote-Extra-Example.com%2fKey", "c"),
)
ANN = User(
    name="ann",
    uid="7",
    groups=("dev", "system:authenticated"),
    extra=(("example.com/key", ("c",)), ("scopes", ("a", "b"))),
)


def front_proxy(**data: str) -> FrontProxy:
    return FrontProxy.of({"data": {**DATA, **data}})


NOBODY_NAMED = {"requestheader-allowed-names": "[]"}


@pytest.mark.parametrize(
    ("data", "peer", "is_known"),
    [
        pytest.param({}, PROXY, True, id="the front proxy"),
        pytest.param({}, None, False, id="no certificate"),
        pytest.param({}, OTHER, False, id="another name"),
        pytest.param({}, {"subject": ()}, False, id="no name"),
        pytest.param(NOBODY_NAMED, OTHER, True, id="all names are allowed"),
        pytest.param(NOBODY_NAMED, None, False, id="all names are allowed, no certificate"),
        pytest.param({"requestheader-client-ca-file": ""}, PROXY, False, id="no authority"),
        pytest.param({"requestheader-username-headers": "[]"}, PROXY, False, id="no header for names"),
    ],
)
def test_headers_count_only_on_connections_of_the_front_proxy(
    data: dict[str, str], peer: Any, *, is_known: bool
) -> None:
    assert front_proxy(**data).user(FULL, peer) == (ANN if is_known else None)


@pytest.mark.parametrize(
    ("pairs", "user"),
    [
        ([], None),
        ([("X-Remote-User", "")], None),
        ([("X-Remote-User", "system:kube-aggregator")],
         User(name="system:kube-aggregator", groups=("system:authenticated",))),
        ([("X-Remote-User", "system:anonymous"), ("X-Remote-Group", "system:unauthenticated")],
         User(name="system:anonymous", groups=("system:unauthenticated",))),
        ([("X-Remote-User", "a"), ("X-Remote-Group", "b")], User(name="a", groups=("b", "system:authenticated"))),
    ],
)  # fmt: skip
def test_users_that_are_not_anonymous_are_authenticated(pairs: list[tuple[str, str]], user: User | None) -> None:
    assert front_proxy().user(headers(*pairs), PROXY) == user


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"requestheader-allowed-names": "front-proxy"}, "requestheader-allowed-names: not JSON"),
        ({"requestheader-group-headers": '{"a": 1}'}, "requestheader-group-headers: not a list of strings"),
        ({"requestheader-group-headers": "[1]"}, "requestheader-group-headers: not a list of strings"),
    ],
)
def test_a_configuration_that_cannot_be_read_says_where(data: dict[str, str], message: str) -> None:
    with pytest.raises(FrontProxyError, match=message):
        front_proxy(**data)


def test_an_api_server_without_a_front_proxy_has_none() -> None:
    assert FrontProxy.of({"data": {"client-ca-file": "PEM"}}) == FrontProxy()


class Api:
    """An API server that allows one verb, and knows one token."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        assert method == "POST"
        self.requests.append((path, body["spec"]))
        spec = body["spec"]
        if path == ACCESS_REVIEWS:
            return {"status": {"allowed": spec.get("resourceAttributes", {}).get("verb") == "list"}}
        known = spec["token"] == "good"  # noqa: S105 - of a test
        return {"status": {"authenticated": known, "user": {"username": "bob", "groups": ["g"]}}}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def access(api: Api) -> Access:
    return Access(
        front_proxy=front_proxy(),
        reviews=Reviews(api=api, clock=lambda: 0.0),
        group="nvidia-gpu-scheduler",
        version="v1",
    )


@pytest.mark.parametrize(
    ("authorization", "name"),
    [("Bearer good", "bob"), ("bearer good", "bob"), ("Bearer bad", ""), ("Bearer", ""), ("Basic good", ""), ("", "")],
)
async def test_without_the_front_proxy_a_token_is_needed(access: Access, authorization: str, name: str) -> None:
    forged = headers(("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters"), ("Authorization", authorization))
    if name:
        assert await access.authenticate(forged, None) == User(name=name, groups=("g",))
        return
    with pytest.raises(StatusError) as caught:
        await access.authenticate(forged, None)
    assert (caught.value.code, caught.value.reason) == (401, "Unauthorized")


async def test_a_token_that_is_absurdly_long_is_not_reviewed(access: Access, api: Api) -> None:
    with pytest.raises(StatusError):
        await access.authenticate(headers(("Authorization", "Bearer " + "x" * 100_000)), None)
    assert api.requests == []


async def test_the_very_request_is_reviewed(access: Access, api: Api) -> None:
    await access.check_resource(ANN, "list", "gpupods", namespace="ns", name="")
    with pytest.raises(StatusError) as caught:
        await access.check_resource(ANN, "get", "gpunodes", namespace="", name="n1")
    assert caught.value.code == 403
    assert str(caught.value) == (
        'gpunodes.nvidia-gpu-scheduler "n1" is forbidden: User "ann" cannot get resource "gpunodes" '
        'in API group "nvidia-gpu-scheduler" at the cluster scope'
    )
    with pytest.raises(StatusError) as caught:
        await access.check_resource(ANN, "get", "pods", subresource="explanation", namespace="ns", name="p")
    assert str(caught.value) == (
        'pods.nvidia-gpu-scheduler "p" is forbidden: User "ann" cannot get resource "pods/explanation" '
        'in API group "nvidia-gpu-scheduler" in the namespace "ns"'
    )
    with pytest.raises(StatusError, match='forbidden: User "ann" cannot get path "/apis"'):
        await access.check_path(ANN, "/apis")
    user = {
        "user": "ann",
        "uid": "7",
        "groups": ["dev", "system:authenticated"],
        "extra": {"example.com/key": ["c"], "scopes": ["a", "b"]},
    }
    of_group = {"group": "nvidia-gpu-scheduler", "version": "v1"}
    assert [spec for _, spec in api.requests] == [
        {**user, "resourceAttributes": {**of_group, "resource": "gpupods", "verb": "list", "namespace": "ns"}},
        {**user, "resourceAttributes": {**of_group, "resource": "gpunodes", "verb": "get", "name": "n1"}},
        {
            **user,
            "resourceAttributes": {
                **of_group,
                "resource": "pods",
                "verb": "get",
                "namespace": "ns",
                "name": "p",
                "subresource": "explanation",
            },
        },
        {**user, "nonResourceAttributes": {"path": "/apis", "verb": "get"}},
    ]


async def test_users_of_one_name_are_reviewed_apart(access: Access, api: Api) -> None:
    for groups in (("a",), ("a",), ("b",)):
        user = User(name="ann", groups=groups)
        await access.check_resource(user, "list", "gpupods", namespace="", name="")
    assert len(api.requests) == 2
