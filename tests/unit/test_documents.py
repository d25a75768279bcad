"""Every module, file, link, flag, metric and make target that a document names exists."""

import argparse
import configparser
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
import yaml
from pydantic_settings import BaseSettings

import berth_agent
import berth_kubectl
import berth_operator
from berth_agent.configuration.options import OTHER_FLAGS
from berth_agent.configuration.settings import Settings as AgentSettings
from berth_kubectl import arguments as kubectl_berth
from berth_operator.apis.list_watch.main import ApiSettings
from berth_operator.apis.webhook.main import WebhookSettings
from berth_operator.commands import main as commands
from berth_operator.commands.cleanup.main import CleanupSettings
from berth_operator.settings.flags import Settings as OperatorSettings
from devcluster import __main__ as devcluster
from tests.harness import metric_names
from tests.programs import chart

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").rglob("*.md")]
BASES = [ROOT / base for base in ("", "operator/berth_operator", "agent/berth_agent", "kubectl/berth_kubectl", "tests")]
"""A document may name a file relative to the root, to one of the programs, or to the tests."""

FENCES = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
SPANS = re.compile(r"`([^`\n]+)`")
FOLDERS = {path.name for base in BASES for path in base.iterdir() if path.is_dir()} - {".build", "workloads"}
"""What is built is not always there, and `workloads/status` is a resource of Kueue's."""
PATH = re.compile(r"(?P<folder>[\w.-]+)/[\w*./-]*|[\w-]+\.(?:py|md)")
MODULE = re.compile(r"(?P<package>[a-z_]+)(?:\.\w+)+")
OWN_COMMAND = re.compile(r"\b(?:berth-operator|berth-agent|python -m devcluster)\b[^\n#`]*")
FLAG = re.compile(r"(?<!\S)--[a-z][a-z-]+")
METRIC = re.compile(r"\bberth_[a-z_]+_[a-z_]+")


def packages(*programs: ModuleType) -> dict[str, str]:
    """Return the modules at the top of the programs: short name (`core`) -> full name (`berth_operator.core`)."""
    return {
        path.stem: f"{program.__name__}.{path.stem}"
        for program in programs
        for folder in program.__path__
        for path in Path(folder).iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
    }


PACKAGES = {
    **packages(berth_kubectl, berth_agent, berth_operator),
    **{
        name: name
        for name in (
            *("berth_api", "berth_base", "berth_client", "berth_operator", "berth_agent", "berth_kubectl"),
            *("devcluster", "demo"),
        )
    },
}


def values(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of the chart's values: `agent.enabled`."""
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from values(value, f"{prefix}{name}.")


VALUES = {*values(yaml.safe_load((chart.CHART / "values.yaml").read_text())), "dra.net"}
"""Some begin like modules: `webhook.port`. So does the name of a driver."""


def settings_flags(settings: type[BaseSettings]) -> Iterator[str]:
    for name in settings.model_fields:
        yield f"--{name.replace('_', '-')}"
        yield f"--no-{name.replace('_', '-')}"


def parser_flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the flags of a parser and of its subcommands."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from parser_flags(subcommand)


FLAGS = {
    "--help",
    "--version",
    *(f"--{flag}" for flag in OTHER_FLAGS.values()),
    *(
        flag
        for settings in (OperatorSettings, AgentSettings, WebhookSettings, ApiSettings, CleanupSettings)
        for flag in settings_flags(settings)
    ),
    *(flag for parser in (commands.parser(), devcluster._parser()) for flag in parser_flags(parser)),
    *(flag for verb in kubectl_berth.VERBS for flag in parser_flags(kubectl_berth.parser(verb))),
}
METRICS = frozenset(metric_names.of_operator())
TARGETS = set(re.findall(r"^([a-z0-9-]+):.*?## ", (ROOT / "Makefile").read_text(), re.MULTILINE))

AGENT_METRICS = metric_names.of_agent()


def wrong_path(span: str) -> bool:
    named = PATH.fullmatch(span)
    if named is None or (named["folder"] or span) not in FOLDERS | {span}:
        return False
    return not any(any(base.glob(span.rstrip("/"))) for base in BASES)


def wrong_module(name: str) -> bool:
    named = MODULE.fullmatch(name)
    if name in VALUES or named is None or named["package"] not in PACKAGES or name.endswith((".py", ".md")):
        return False
    try:
        resolve_name(name.replace(named["package"], PACKAGES[named["package"]], 1))
    except (AttributeError, ImportError):
        return True
    return False


def unknown(text: str) -> list[str]:
    """Return the names in a document that the repository does not have."""
    blocks = "".join(FENCES.findall(text))
    spans = SPANS.findall(FENCES.sub("", text))
    imports = [f"{module}.{name}" for module, name in re.findall(r"^from ([\w.]+) import (\w+)$", blocks, re.MULTILINE)]
    flags = [flag for span in spans if span.startswith("--") for flag in FLAG.findall(span)]
    flags += [flag for command in OWN_COMMAND.findall(text) for flag in FLAG.findall(command)]
    metrics = {name for span in spans for name in METRIC.findall(span)} - {"berth_example_npu", "berth_example_gpus"}
    targets = re.findall(r"(?:`|^ *\$? *)make ([a-z][a-z0-9-]*)", text, re.MULTILINE)
    return [
        *filter(wrong_path, spans),
        *filter(wrong_module, [*spans, *imports]),
        *(flag for flag in flags if flag not in FLAGS),
        *sorted(metrics - METRICS - AGENT_METRICS),
        *(target for target in targets if target not in TARGETS),
    ]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCES.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not re.match(r"[a-z]+:", link) and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_document_names_only_what_exists(page: Path) -> None:
    assert unknown(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_document_links_only_to_what_exists(page: Path) -> None:
    assert broken_links(page) == []


# --- the rooms of the architecture --------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


@pytest.mark.parametrize(
    ("contract", "heading"), [("layers", "The operator's layers"), ("agent", "The agent's layers")]
)
def test_the_layers_of_the_architecture_are_those_that_are_checked(contract: str, heading: str) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    checked = contracts[f"importlinter:contract:{contract}"]["layers"].split("\n")
    _, _, section = ARCHITECTURE.partition(f"## {heading}\n\n")
    shown = dict[int, set[str]]()
    # Each line is indented below its layer's names; equal indentation is one layer.
    for indent, modules in re.findall(r"^( {4,})(\w+(?:, \w+)*)", section.partition("\n\n")[0], re.MULTILINE):
        shown.setdefault(len(indent), set()).update(modules.split(", "))
    assert [shown[indent] for indent in sorted(shown)] == [set(line.split(" | ")) for line in checked if line]


def test_the_architecture_lists_each_folder_of_a_layer_of_the_operator() -> None:
    top = ROOT / "operator/berth_operator"
    folders = {f"{path.parent.relative_to(top)}/" for path in top.glob("*/*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+/\w+/)` ", ARCHITECTURE, re.MULTILINE)) == folders


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("in `core/no_such_file.py`", "core/no_such_file.py"),
        ("in `manifests/no-such-folder/`", "manifests/no-such-folder/"),
        ("see `tests/bench/no_such_*.py`", "tests/bench/no_such_*.py"),
        ("by `berth_api.no_such_module`", "berth_api.no_such_module"),
        ("by `state.no_such_module`", "state.no_such_module"),
        ("by `core.policy.NoSuchClass`", "core.policy.NoSuchClass"),
        ("```python\nfrom berth_api.request import NoSuchClass\n```", "berth_api.request.NoSuchClass"),
        ("set `--no-such-flag=2`", "--no-such-flag"),
        ("    berth-operator simulate --no-such-flag", "--no-such-flag"),
        ("`berth_no_such_metric_total` grows", "berth_no_such_metric_total"),
        ("run `make no-such-target`", "no-such-target"),
        ("    make no-such-target", "no-such-target"),
    ],
)
def test_what_does_not_exist_is_found(text: str, wrong: str) -> None:
    assert unknown(text) == [wrong]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[there](page.md#one) [not there](none.md) [no heading](page.md#two) [out](https://a.b/c)\n")
    assert broken_links(page) == ["none.md", "page.md#two"]


def test_a_page_or_anchor_that_other_files_name_exists() -> None:
    """Comments, help texts, manifests, alerts and messages send readers to pages."""
    folders = (
        "agent",
        "api",
        "base",
        "charts",
        "client",
        "crds",
        "demo",
        "devcluster",
        "images",
        "kubectl",
        "manifests",
    )
    files = [
        file
        for folder in (*folders, "operator", "tests")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yaml", ".tpl", ".txt", ".sh", ".json"}
    ]
    named = {
        (str(file.relative_to(ROOT)), page, anchor)
        for file in files
        for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", file.read_text())
    }
    assert named
    pages = {page: anchors(ROOT / page) if (ROOT / page).exists() else None for _, page, _ in named}
    wrong = [name for name in named if (there := pages[name[1]]) is None or (name[2] and name[2] not in there)]
    assert sorted(wrong) == []


BY_ID = re.compile(r"nvidia-smi\b[^`\n]*?\s(?:-i|--id)(?:=|\s+)(?P<id>\S+?)[`\s.,;]")
READ = {".md", ".py", ".yaml", ".js", ".html", ".txt", ".tpl"}
GOOD_IDS = re.compile(r"UUID|\$UUID|GPU-\S+|\{card\['id'\]\}")


@pytest.mark.parametrize(
    "text", ["nvidia-smi --gpu-reset -i <minor>`", "nvidia-smi -q --id=0 ", "nvidia-smi -i {card['minor']} "]
)
def test_a_minor_for_nvidia_smi_is_found(text: str) -> None:
    assert not all(GOOD_IDS.fullmatch(each["id"]) for each in BY_ID.finditer(text))


def test_nvidia_smi_gets_no_minor() -> None:
    """Its `-i` takes an index, which may be another tenant's card: minors are numbers of another order."""
    folders = ("docs", "agent", "api", "charts", "images", "kubectl", "manifests", "operator")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in READ and path.is_file()
    ]
    texts = [path.read_text() for path in [*files, *ROOT.glob("*.md")]]
    used = [each["id"] for text in texts for each in BY_ID.finditer(text)]
    assert used
    assert [each for each in used if not GOOD_IDS.fullmatch(each)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/devcluster.md"])
def test_faults_of_the_fleet_to_try_are_named_as_meant(page: str) -> None:
    fleet = yaml.safe_load((ROOT / "manifests/configuration/fleet.yaml").read_text())
    faulty = [each["names"] for each in fleet["nodes"] if each.get("unhealthy") or not each.get("heartbeat", True)]
    [sentence] = re.findall(r"[Oo]n purpose[^.|]*", (ROOT / page).read_text())
    assert set(re.findall(r"`(node-\d+)`", sentence)) == set(faulty)


@pytest.mark.parametrize("page", ["README.md", "docs/runbooks.md"])
def test_the_holder_of_the_lease_is_shown_whole(page: str) -> None:
    [holder] = re.findall(r"^berth-operator +host_(\S+)", (ROOT / page).read_text(), re.MULTILINE)
    assert str(UUID(holder)) == holder
