"""The operator's settings affect each other."""

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from berth_operator.apis.webhook.main import WebhookSettings
from berth_operator.settings.flags import Settings

POD = "berth-system/berth-operator-0/5f0f2ad6"


def settings(*arguments: str) -> Settings:
    return Settings(_cli_parse_args=list(arguments))


def test_restarted_container_has_the_identity_of_its_predecessor() -> None:
    assert settings(f"--pod={POD}").identity == settings(f"--pod={POD}").identity
    assert settings(f"--pod={POD}").identity.endswith("_5f0f2ad6")


def test_processes_without_a_pod_have_identities_of_their_own() -> None:
    assert settings().identity != settings().identity


def test_identity_can_be_given() -> None:
    assert settings(f"--pod={POD}", "--identity=a").identity == "a"


# --- units --------------------------------------------------------------------------------------------------------


def test_the_unit_of_a_resource_that_has_none_is_refused() -> None:
    assert settings("--memory-units=aliyun.com/gpu-mem=1Mi").memory_units
    with pytest.raises(ValidationError, match=r'"cpu"; allowed are nvidia\.com/gpumem, '):
        settings("--memory-units=cpu=1Mi")


@pytest.mark.parametrize("flag", ["--routed-resources", "--nvidia-resources"])
@pytest.mark.parametrize(
    "names", ["", "nvidia.com/a100", "example.com/gpu,example.com/NPU_2", "a.com/b, c.com/d", "gpu"]
)
def test_resources_that_no_pod_can_request_are_refused(flag: str, names: str) -> None:
    reads = [WebhookSettings, Settings] if flag == "--routed-resources" else [WebhookSettings]
    for read in reads:
        if " " in names or names == "gpu":
            with pytest.raises(ValidationError, match="must be names of resources with a domain, separated by commas"):
                read(_cli_parse_args=[f"{flag}={names}"])
        else:
            assert names in read(_cli_parse_args=[f"{flag}={names}"]).model_dump().values()


# --- the extender -------------------------------------------------------------------------------------------------

PORT = "--extender-port=1"
ELSEWHERE = "--extender-address=0.0.0.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [PORT, ELSEWHERE],
            "--extender-address 0.0.0.0: other machines can reach it, so --extender-certificate and",
        ),
        ([PORT, ELSEWHERE, "--extender-certificate=c"], "--extender-client-ca are required"),
        ([PORT, "--extender-client-ca=a"], "--extender-client-ca requires --extender-certificate"),
        ([PORT, "--extender-clients=a"], "--extender-clients requires --extender-client-ca"),
        ([PORT, "--extender-service=a/b"], '--pod-ip "": --extender-service requires the address'),
        ([PORT, "--extender-service=a/b", "--pod-ip=x"], '--pod-ip "x": --extender-service requires the address'),
        ([PORT, "--extender-service=b"], "must be namespace/name of a Service, or empty"),
        ([PORT, "--extender-nodes=0"], "greater than or equal to 1"),
        ([PORT, "--extender-timeout=0"], "greater than 0"),
        ([PORT, "--extender-score=x"], "'policy' or 'free-cards'"),
        (
            [PORT, "--extender-schedulers=a,b", "--scheduler-names=b,c"],
            "--extender-schedulers b: Berth schedules these pods itself; remove them here or from --scheduler-names",
        ),
    ],
)
def test_an_extender_that_others_could_call_or_that_shares_pods_is_refused(
    arguments: Sequence[str], message: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(*arguments)
    assert message in str(refused.value)


def test_the_extender_takes_pods_only_if_it_is_on() -> None:
    assert settings().extended == frozenset()
    assert settings(PORT).extended == {"default-scheduler"}
    secured = [PORT, ELSEWHERE, "--extender-certificate=c", "--extender-client-ca=a", "--extender-schedulers=a,b"]
    assert settings(*secured).extended == {"a", "b"}


@pytest.mark.parametrize(("ip", "host"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_other_replicas_reach_the_visibility_api_at_the_pods_address(ip: str, host: str) -> None:
    assert settings("--visibility-port=9445", f"--pod-ip={ip}").visibility_endpoint == f"{host}:9445"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics-source=prometheus"], "set --prometheus-url or --prometheus-namespaces, and not both"),
        (
            ["--metrics-source=prometheus", "--prometheus-url=http://p", "--prometheus-namespaces=m"],
            "set --prometheus-url or --prometheus-namespaces, and not both",
        ),
        (["--metrics-source=x"], "'none', 'agents' or 'prometheus'"),
        (["--prometheus-url=p:9090"], "must be http://host:port/path"),
        (["--prometheus-url=https://user:word@p"], "without user and query"),
        (["--prometheus-url=http://p?a=b"], "without user and query"),
        (["--prometheus-url=http://p", "--prometheus-token-file=t"], "http://p would expose the token; use https"),
        (["--prometheus-ca=/nowhere"], "/nowhere: no certificates: No such file"),
        (["--prometheus-namespaces=a,B"], "must be names of namespaces, separated by commas"),
        (["--metrics-interval=40"], "--metrics-stale-after 60: must be at least twice --metrics-interval 40"),
    ],
)
def test_a_source_of_metrics_that_is_incomplete_or_unsafe_is_refused(arguments: Sequence[str], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(*arguments)
    assert message in str(refused.value)


def test_namespaces_of_prometheus_are_a_list() -> None:
    assert settings().prometheus_namespace_names == ()
    named = settings("--metrics-source=prometheus", "--prometheus-namespaces=a,b")
    assert named.prometheus_namespace_names == ("a", "b")
