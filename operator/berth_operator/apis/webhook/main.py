"""`berth-operator webhook`: its settings and its process."""

import asyncio
import functools
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from berth_api import names, words
from berth_api.admission import shares
from berth_api.plugins import PluginError
from berth_api.request.isolation import RESOURCES
from berth_api.request.kinds import checked_nics, read_nics
from berth_base import logs, start
from berth_base.allowed import Allowed
from berth_base.start import StartError
from berth_client.credentials import CredentialsError
from berth_operator.apis.serving import listening
from berth_operator.apis.serving.certificates import Files, Shared, Source, Webhooks
from berth_operator.apis.serving.settings import ServerSettings
from berth_operator.apis.serving.tls import ServedCertificate
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.bindings import BindingValidation
from berth_operator.apis.webhook.mutations import Isolation, Mutations, Routing
from berth_operator.apis.webhook.review import AskingResponder, Responder
from berth_operator.apis.webhook.validation import Validation
from berth_operator.apis.webhook.webhook_server import WebhookServer
from berth_operator.clients.kube import KubeClient
from berth_operator.core.plugins import kinds_of
from berth_operator.settings import device_plugins
from berth_operator.settings.configuration import ResourceNames, SchedulerNames

NAME: Final = "berth-operator webhook"
CONNECTIONS: Final = 8
"""To the API server, at most: kube-scheduler sends several hundred Bindings a second."""
TAINT_KEY: Final = r"([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*"


def checked_order(text: str) -> str:
    """Return modes that are joined by commas.

    Raises:
        ValueError: one is not known.
    """
    if unknown := [mode for mode in text.split(",") if mode not in RESOURCES]:
        raise ValueError(f'"{unknown[0]}"; allowed are {", ".join(RESOURCES)}')
    return text


class WebhookSettings(ServerSettings):
    """The webhook that routes pods to Berth, injects the variable by which they see devices, and validates requests.

    docs/admission.md describes it. `--version` prints the version.
    """

    model_config = SettingsConfigDict(env_prefix="BERTH_WEBHOOK_", cli_prog_name=NAME)

    port: Annotated[int, Field(ge=1, le=65535)] = 9443
    """Port to listen on."""

    host: str = "berth-webhook.berth-system.svc"
    """Host name or address by which the API server calls the webhook, for its own certificate."""

    secret: str = "berth-webhook"  # noqa: S105 - a name
    """Name of the Secret through which replicas share their own certificate."""

    configuration: str = "berth-injection"
    """MutatingWebhookConfiguration to write the certificate to, if it exists."""

    validating_configuration: str = "berth-validation"
    """ValidatingWebhookConfiguration to write the certificate to, if it exists."""

    scheduler_names: SchedulerNames = names.SCHEDULER
    """Scheduler names of the profiles, separated by commas. Their pods are validated, and routed pods get the first
    name."""

    memory_units: Annotated[str, AfterValidator(words.checked_units)] = ""
    """The same value as the operator's `--memory-units`."""

    nic_resources: Annotated[str, AfterValidator(checked_nics)] = ""
    """The same value as the operator's `--nic-resources`."""

    runtime_class: str = ""
    """RuntimeClass for pods that request GPUs and name none. Empty if NVIDIA's runtime is the nodes' default."""

    nvidia_resources: ResourceNames = ""
    """Resources that NVIDIA's device plugin serves under changed names, separated by commas."""

    nics: bool = False
    """Whether the agents give containers the device files of the RDMA NICs that their pods hold (the agent's `--nics`).
    Containers that request NICs then get the resource `berth.dev/rdma`."""

    tolerations: Annotated[
        str,
        Field(pattern=f"^({TAINT_KEY}(,{TAINT_KEY})*)?$"),
        Allowed("keys of taints, separated by commas without spaces, such as nvidia.com/gpu"),
    ] = ""
    """Keys of taints with the effect `NoSchedule`, separated by commas. Pods of Berth that request devices tolerate
    them."""

    routed_resources: ResourceNames = ""
    """Resources besides NVIDIA's that route pods of namespaces with `berth.dev/routing: devices`, separated by
    commas."""

    validate_bindings: bool = False
    """Whether to refuse Bindings of other programs by which a pod's containers would see none of the GPUs that they
    request."""

    isolation: Literal["mps", "hami-core", "required", "none"] = "none"
    """How containers are limited to their shares of cards, unless the pod or its namespace sets a mode."""

    isolation_order: Annotated[str, AfterValidator(checked_order)] = ",".join(shares.ORDER)
    """Modes in order of preference, separated by commas: `required` means the first of them."""


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    start.show_version(NAME, arguments)
    try:
        settings = start.read(WebhookSettings, arguments)
        listening.check_free(f"--port {settings.port}", str(settings.address), settings.port)
        logs.configure(form=settings.log_format, level=settings.log_level)
        logs.started(settings, os.environ)
        schedulers = tuple(settings.scheduler_names.split(","))
        units, nics = words.read_units(settings.memory_units), read_nics(settings.nic_resources)
        plugins = device_plugins.installed()
        kinds = kinds_of(plugins, units, nics, device_plugins.gpu_resources(plugins))
        asyncio.run(_run(settings, Validation(schedulers=schedulers, kinds=kinds)))
    except (StartError, CredentialsError, PluginError) as error:
        start.give_up(NAME, str(error))
    return 0


async def _run(settings: WebhookSettings, validation: Validation) -> None:
    serving = asyncio.create_task(_serve(settings, validation))
    for end in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(end, serving.cancel)
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


async def _serve(settings: WebhookSettings, validation: Validation) -> None:
    files = None
    if settings.certificate is not None and settings.key is not None:
        files = Files(certificate=settings.certificate, key=settings.key)
    if files is not None and not settings.validate_bindings:
        await _serve_by(files, settings, validation)
        return
    client = await KubeClient.connect(settings.kubeconfig, "berth-operator/webhook", limit=CONNECTIONS)
    try:
        source = files or Shared(
            api=client,
            namespace=settings.namespace,
            secret=settings.secret,
            trusting=(
                Webhooks("mutatingwebhookconfigurations", settings.configuration),
                Webhooks("validatingwebhookconfigurations", settings.validating_configuration),
            ),
            component="validation",
            host=settings.host,
            lifetime=timedelta(seconds=settings.lifetime),
        )
        bindings = functools.partial(review.binding_validated, bindings=BindingValidation(pods=client))
        asking = {"/validate-binding": bindings} if settings.validate_bindings else {}
        await _serve_by(source, settings, validation, asking)
    finally:
        client.close()


async def _serve_by(
    source: Source,
    settings: WebhookSettings,
    validation: Validation,
    asking: Mapping[str, AskingResponder] = MappingProxyType({}),
) -> None:
    mutations = Mutations(
        renamed=frozenset(settings.nvidia_resources.split(",")),
        tolerated=tuple(filter(None, settings.tolerations.split(","))),
        runtime_class=settings.runtime_class,
        nics=settings.nics,
    )
    served = frozenset(filter(None, settings.routed_resources.split(",")))
    routing = Routing(scheduler=validation.schedulers[0], served=served)
    isolation = Isolation(default=settings.isolation, order=settings.isolation_order.split(","))
    certificate = ServedCertificate(source=source, period=settings.period)
    responders: dict[str, Responder | AskingResponder] = {
        **review.responders(mutations, routing, validation, isolation),
        **asking,
    }
    server = WebhookServer(certificate=certificate, responders=responders)
    await server.serve(str(settings.address), settings.port)
