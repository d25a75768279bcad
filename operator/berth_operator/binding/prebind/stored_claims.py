"""Claims and classes in protobuf as stored in etcd. Their parameters for drivers are free JSON, compared byte for byte.

The API server returns `{"v": 1.50}` as `{"v":1.50}`, and a parser turns this into `{"v": 1.5}`. The API server refuses
the parsed value as a change of an immutable field. So Berth writes the stored claim and changes only the fields below.
"""

from typing import Any, Final, NamedTuple

from berth_client import wire

Object = dict[str, Any]

# Numbers of fields, as in k8s.io/api/resource/v1/generated.proto.
_METADATA, _STATUS = 1, 3
_RESOURCE_VERSION, _LABELS, _FINALIZERS = 6, 11, 14
_ALLOCATION, _RESERVED_FOR, _DEVICES = 1, 2, 4
_REFERENCE: Final = {"apiGroup": 1, "resource": 3, "name": 4, "uid": 5}
_CLAIM_CONFIG: Final = (2, 1, 3)
_CLASS_CONFIG: Final = (2, 2, 2)
"""From a list of classes."""
_OPAQUE: Final = 1
"""From a DeviceConfiguration."""


class StoredConfig(NamedTuple):
    """A configuration for a driver."""

    driver: str
    parameters: bytes
    """The stored JSON, unchanged."""


def merged(stored: bytes, claim: Object) -> bytes:
    """Return a stored claim with the labels, finalizers, `reservedFor` and the resourceVersion of `claim`.

    The stored allocation and the drivers' stored reports of devices stay unchanged if `claim` has them. Each of the two
    is removed if `claim` lacks it.

    Raises:
        WireError: the stored claim cannot be read.
    """
    message = wire.opened(stored)
    fields, labels = claim["metadata"], claim["metadata"].get("labels") or {}
    metadata = wire.without(b"".join(wire.values(message, _METADATA)), {_RESOURCE_VERSION, _LABELS, _FINALIZERS})
    metadata += wire.texts(_RESOURCE_VERSION, [fields["resourceVersion"]])
    for key, value in labels.items():
        metadata += wire.encoded(_LABELS, wire.texts(1, [key]) + wire.texts(2, [value]))
    metadata += wire.texts(_FINALIZERS, fields.get("finalizers") or ())

    shown = claim.get("status") or {}
    gone = {number for name, number in (("allocation", _ALLOCATION), ("devices", _DEVICES)) if not shown.get(name)}
    status = wire.without(b"".join(wire.values(message, _STATUS)), {_RESERVED_FOR, *gone})
    for consumer in shown.get("reservedFor") or ():
        numbers = ((name, number) for name, number in _REFERENCE.items() if consumer.get(name))
        reference = b"".join(wire.texts(number, [consumer[name]]) for name, number in numbers)
        status += wire.encoded(_RESERVED_FOR, reference)

    kept = wire.without(message, {_METADATA, _STATUS})
    return wire.enclosed(stored, wire.encoded(_METADATA, metadata) + kept + wire.encoded(_STATUS, status))


def configs_of_claim(stored: bytes) -> list[StoredConfig]:
    """Return the configurations of a claim; raise WireError."""
    return [_config(config, 2) for config in wire.values(wire.opened(stored), *_CLAIM_CONFIG)]


def configs_of_class(stored: bytes) -> list[StoredConfig]:
    """Return the configurations of a class, from a list of this class alone; raise WireError."""
    return [_config(config, 1) for config in wire.values(wire.opened(stored), *_CLASS_CONFIG)]


def _config(stored: bytes, device_configuration: int) -> StoredConfig:
    [*_, opaque] = [b"", *wire.values(stored, device_configuration, _OPAQUE)]
    return StoredConfig(
        driver=b"".join(wire.values(opaque, 1)).decode(errors="replace"), parameters=b"".join(wire.values(opaque, 2, 1))
    )
