"""A rule about host ports."""

from random import Random

from tests.differential.draft import Draft, Raw, container

ADDRESSES = ("", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::")  # noqa: S104 - no socket


def host_ports(draft: Draft, *, focus: bool) -> None:
    """Make the probe request a port that is in use on the last node; on the first one only similar ports are."""
    random = draft.random
    port = {"containerPort": 80, "hostPort": random.choice([80, 81]), **_address(random), **_protocol(random)}
    if random.random() < 0.3:
        draft.probe["spec"]["initContainers"] = [container("side", restartPolicy="Always", ports=[port])]
    else:
        draft.probe["spec"]["containers"].append(container("listens", ports=[port]))
    for node in draft.nodes:
        if random.random() < 0.7:
            draft.put(node, _listening(random, _unlike(random, port)))
        if (node is draft.last and focus) or (node in draft.between and random.random() < 0.5):
            draft.put(node, _listening(random, _like(random, port)))
    if random.random() < 0.3:
        # An init container that ends before the containers start holds no port.
        draft.put(draft.first, {"initContainers": [container("init", ports=[port])]})


def _listening(random: Random, port: Raw) -> Raw:
    if random.random() < 0.3:
        return {"initContainers": [container("side", restartPolicy="Always", ports=[port])]}
    return {"containers": [container("main", ports=[port])]}


def _like(random: Random, port: Raw) -> Raw:
    if port.get("hostIP", "0.0.0.0") == "0.0.0.0":  # noqa: S104 - no socket
        return {**port, "hostIP": random.choice(ADDRESSES[1:])}
    return {**port, "hostIP": random.choice([port["hostIP"], "0.0.0.0"])}  # noqa: S104 - no socket


def _unlike(random: Random, port: Raw) -> Raw:
    choices = [
        {**port, "hostPort": port["hostPort"] + 10},
        {**port, "protocol": "SCTP"},
        {key: value for key, value in port.items() if key not in {"hostPort", "hostIP"}},
    ]
    if port.get("hostIP", "0.0.0.0") != "0.0.0.0":  # noqa: S104 - no socket
        choices.append({**port, "hostIP": "10.0.0.9"})
    return random.choice(choices)


def _address(random: Random) -> Raw:
    address = random.choice(ADDRESSES)
    return {"hostIP": address} if address else {}


def _protocol(random: Random) -> Raw:
    return random.choice([{}, {"protocol": "TCP"}, {"protocol": "UDP"}])
