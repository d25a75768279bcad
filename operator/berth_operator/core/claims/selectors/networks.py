"""IP addresses and CIDR ranges, Kubernetes' additions to CEL."""

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.overloads import functions, methods

_PREFIX: Final = re.compile("0|[1-9][0-9]{0,2}")
Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface


def _ip(text: str) -> Address:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise EvaluationError(f'"{text}" is not an IP address') from error
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address.ipv4_mapped is not None):
        raise EvaluationError(f'IP address "{text}" has a zone or is mapped from IPv4, which is not allowed')
    return address


def _cidr(text: str) -> Interface:
    address, slash, length = text.partition("/")
    if not slash or not _PREFIX.fullmatch(length) or int(length) > _ip(address).max_prefixlen:
        raise EvaluationError(f'"{text}" is not a CIDR range')
    return ip_interface(text)


def _contains_ip(cidr: Interface, address: Address) -> bool:
    return address in cidr.network


def _contains_cidr(cidr: Interface, other: Interface) -> bool:
    return cidr.version == other.version and other.network.subnet_of(cidr.network)  # type: ignore[arg-type]


def _is_global_unicast(address: Address) -> bool:
    is_broadcast = address == IPv4Address("255.255.255.255")
    return not (
        is_broadcast or address.is_unspecified or address.is_loopback or address.is_multicast or _is_link_local(address)
    )


def _is_link_local(address: Address) -> bool:
    return not address.is_multicast and address.is_link_local


def _is_link_local_multicast(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.packed[:3] == bytes((224, 0, 0))
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02  # noqa: PLR2004 - RFC 4291


def _text(address: Address | Interface) -> str:
    return str(address)


def _parses(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def does(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return does


functions(
    {
        "ip(string) net.IP": _ip,
        "isIP(string) bool": _parses(_ip),
        "ip.isCanonical(string) bool": lambda text: str(_ip(text)) == text,
        "string(net.IP) string": _text,
        "cidr(string) net.CIDR": _cidr,
        "isCIDR(string) bool": _parses(_cidr),
        "string(net.CIDR) string": _text,
    }
)
methods(
    {
        "family(net.IP) int": lambda address: address.version,
        "isUnspecified(net.IP) bool": lambda address: address.is_unspecified,
        "isLoopback(net.IP) bool": lambda address: address.is_loopback,
        "isLinkLocalMulticast(net.IP) bool": _is_link_local_multicast,
        "isLinkLocalUnicast(net.IP) bool": _is_link_local,
        "isGlobalUnicast(net.IP) bool": _is_global_unicast,
        "containsIP(net.CIDR, string) bool": lambda cidr, text: _contains_ip(cidr, _ip(text)),
        "containsIP(net.CIDR, net.IP) bool": _contains_ip,
        "containsCIDR(net.CIDR, string) bool": lambda cidr, text: _contains_cidr(cidr, _cidr(text)),
        "containsCIDR(net.CIDR, net.CIDR) bool": _contains_cidr,
        "ip(net.CIDR) net.IP": lambda cidr: cidr.ip,
        "prefixLength(net.CIDR) int": lambda cidr: cidr.network.prefixlen,
        "masked(net.CIDR) net.CIDR": lambda cidr: ip_interface(cidr.network),
    }
)
