"""How the operator's settings affect each other."""

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
