"""The SBOM of an image, in CycloneDX 1.6: exactly the Python distributions and Debian packages that its files name.

A distribution has the hashes that requirements.lock allows for its files.
"""

import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release import archives
from release.images import Installed

OWN: Final = "berth-operator"
"""Our distribution, which no lock pins."""
DEBIAN: Final = "debian-12"
PIN: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+).*\n(?P<hashes>(?:[ ]+--hash=.*\n)*)", re.MULTILINE)


def text(image: str, version: str, digest: str, packages: Iterable[Installed], lock: str) -> str:
    """Return the SBOM of an image with a digest.

    Raises:
        ValueError: a distribution is not one that the lock pins.
    """
    pins = {(_normalized(pin["name"]), pin["version"]): pin["hashes"] for pin in PIN.finditer(lock)}
    subject = Component(name=image, version=version, type=ComponentType.CONTAINER, bom_ref=digest)
    subject.hashes.add(_sha256(digest.partition(":")[2]))
    bom = Bom(
        # Derived from the image, so that the same image has the same file.
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest),
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(archives.epoch(), UTC)),
    )
    bom.components.update(
        _debian(package) if package.architecture else _distribution(package, pins) for package in packages
    )
    bom.register_dependency(subject, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _debian(package: Installed) -> Component:
    qualifiers = {"arch": package.architecture, "distro": DEBIAN}
    url = PackageURL("deb", "debian", package.name, package.version, qualifiers)
    return _library(package, url)


def _distribution(package: Installed, pins: dict[tuple[str, str], str]) -> Component:
    name = _normalized(package.name)
    component = _library(package, PackageURL("pypi", None, name, package.version))
    if name != OWN:
        if (name, package.version) not in pins:
            raise ValueError(f"the image has {name} {package.version}, which requirements.lock does not pin")
        source = XsUri(f"https://pypi.org/simple/{name}/")
        hashes = map(_sha256, re.findall(r"--hash=sha256:(\w+)", pins[name, package.version]))
        kind = ExternalReferenceType.DISTRIBUTION
        component.external_references.add(ExternalReference(type=kind, url=source, hashes=hashes))
    return component


def _library(package: Installed, url: PackageURL) -> Component:
    return Component(name=package.name, version=package.version, purl=url, bom_ref=url.to_string())


def _sha256(content: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=content)


def _normalized(name: str) -> str:
    """Return a distribution's name as an index writes it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
