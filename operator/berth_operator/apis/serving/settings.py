"""Settings for every HTTPS server that the API server calls."""

from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, IPvAnyAddress, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from berth_base.logs import Form, Level


class ServerSettings(BaseSettings):
    """Where to listen, by which certificate, and how to log."""

    model_config = SettingsConfigDict(
        cli_kebab_case=True, cli_implicit_flags=True, use_attribute_docstrings=True, frozen=True
    )

    address: IPvAnyAddress = IPv4Address("0.0.0.0")  # noqa: S104 - the API server calls from anywhere
    """Address to listen on; `0.0.0.0` or `::`: all addresses, IPv4 and IPv6."""

    certificate: Path | None = None
    """PEM file with the certificate chain, read again every `period`. Without a file the server creates its own
    certificate."""

    key: Path | None = None
    """PEM file with the certificate's key."""

    lifetime: Annotated[float, Field(ge=3)] = 90 * 86400.0
    """Seconds for which the server's own certificate is valid. It is renewed when a third of them is left."""

    period: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two checks for a new certificate and for new authorities of clients."""

    namespace: str = "berth-system"
    """Namespace of the Secret."""

    kubeconfig: Path | None = None
    """Kubeconfig file. Default: the pod's service account."""

    log_format: Form = "json"
    """Format of log lines: key=value or JSON."""

    log_level: Level = "info"
    """Lowest severity that is logged. Libraries log warnings and above."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("--certificate and --key: set both files, or neither")
        return self
