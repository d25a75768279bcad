"""How the operator's settings affect each other."""

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from berth_operator.settings import Settings

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
        ([PORT, "--extender-service=b"], "String should match pattern"),
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
