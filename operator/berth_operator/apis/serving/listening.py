"""Check at the start that the program can listen at the configured addresses with the configured certificate."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from berth_base import sockets
from berth_base.start import StartError
from berth_operator.settings.flags import Settings


def check(settings: Settings) -> None:
    """Check what the operator listens with: kopf and the debug API start to listen only seconds later.

    Raises:
        StartError: a port or a certificate cannot be used.
    """
    if settings.health:
        probe = urlsplit(settings.health)
        check_free(f"--health {settings.health}", probe.hostname or "", probe.port or 80)
    if settings.metrics_port:
        check_free(f"--metrics-port {settings.metrics_port}", str(settings.metrics_address), settings.metrics_port)
    if settings.debug_port:
        check_free(f"--debug-port {settings.debug_port}", str(settings.debug_address), settings.debug_port)
        if settings.debug_certificate:
            _check_certificate("debug", settings.debug_certificate, settings.debug_key)
    if settings.visibility_port:
        option = f"--visibility-port {settings.visibility_port}"
        check_free(option, str(settings.visibility_address), settings.visibility_port)
    if settings.extender_port:
        check_free(f"--extender-port {settings.extender_port}", str(settings.extender_address), settings.extender_port)
        if settings.extender_certificate:
            _check_certificate("extender", settings.extender_certificate, settings.extender_key)
        if settings.extender_client_ca:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(settings.extender_client_ca)
            except OSError as error:
                raise StartError(
                    f"--extender-client-ca {settings.extender_client_ca}: {(error.strerror or str(error)).lower()}"
                ) from error


def check_free(option: str, address: str, port: int) -> None:
    """Check that a program can listen on an address and port.

    Raises:
        StartError: it cannot; the text begins with the option.
    """
    sockets.listener_of(option, address, port).close()


def _check_certificate(of: str, certificate: Path, key: Path | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        files = f"--{of}-certificate {certificate}" + (f" with --{of}-key {key}" if key else "")
        raise StartError(f"{files}: {(error.strerror or str(error)).lower()}") from error
