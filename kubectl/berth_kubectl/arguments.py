"""The command line: verbs, and the flags that several verbs share. A verb's module is loaded only when it is used."""

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

from berth_kubectl.errors import NOT_ANSWERED, CommandError

PROGRAM: Final = "kubectl berth"
VERBS: Final = {
    "explain": "show why a pod waits and what it lacks, or why it was placed on its node",
    "queue": "show the pods that wait, in the order in which they will be tried",
    "top": "show utilization, memory and watts of cards, and which pods hold idle cards",
    "devices": "show every device: health, use, MIG, NUMA node, links",
    "free": "show what is free, by model, and the largest request that fits one node",
    "who": "show which pods hold devices: by pod, namespace, owner, node or card",
    "simulate": "show whether and where the pods of a workload would fit, and what would stay free",
    "advise": "show which few pods to move so that a pod fits",
    "migrate": "convert manifests of other systems to Berth's names, and show how to move a cluster",
    "dashboard": "show nodes, queue, holders and health in the browser, live",
    "doctor": "check the installation, and show what to type to repair it",
    "completion": "install completion of verbs, flags and names",
}
"""Verb -> what it does, for the help; each has a module in `berth_kubectl.commands`."""

FLAGS: Final = (
    ("--kubeconfig", "FILE", "path to the kubeconfig file"),
    ("--context", "NAME", "context of the kubeconfig file"),
    ("--cluster", "NAME", "cluster of the kubeconfig file"),
    ("--user", "NAME", "user of the kubeconfig file"),
    ("--as", "USER", "user to impersonate"),
    ("--as-group", "GROUP", "group to impersonate; may be repeated"),
    ("--as-uid", "UID", "UID to impersonate"),
    ("--server", "ADDRESS", "address of the API server"),
    ("--token", "TOKEN", "bearer token"),
    ("--certificate-authority", "FILE", "CA of the API server"),
    ("--client-certificate", "FILE", "client certificate"),
    ("--client-key", "FILE", "key of the client certificate"),
    ("--tls-server-name", "NAME", "name in the API server's certificate"),
    ("--request-timeout", "DURATION", "timeout of one request: 10s"),
)
"""Global flags of kubectl that are passed on."""
EPILOG: Final = """\
Exit status: 0 for an answer, 1 for a negative answer (a pod does not fit, something is wrong), 2 for no answer.
docs/kubectl.md explains every column.
"""
FORMS: Final = ("wide", "json", "yaml", "name")


class Parser(argparse.ArgumentParser):
    """Reports a mistake in the arguments as one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(NOT_ANSWERED, f"error: {message}; see `{self.prog} --help`\n")

    def flags(self) -> dict[str, argparse.Action]:
        """Return all flags: name -> action. argparse has no public way to ask for them."""
        return dict(self._option_string_actions)

    def positional(self) -> argparse.Action | None:
        """Return the first argument that is no flag; None if there is none."""
        return next((action for action in self._actions if not action.option_strings), None)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line, with its verb's function as `run`; a mistake ends the program."""
    place = place_of_verb(arguments)
    verb = arguments[place] if place < len(arguments) else ""
    if verb not in VERBS:
        if not verb:
            _top().parse_args(arguments)  # for --help
        given = f'unknown command "{verb}"' if verb else "no command was given"
        raise CommandError(f"{given}; allowed are {', '.join(VERBS)}")
    own = parser(verb)
    options = own.parse_args([*arguments[:place], *arguments[place + 1 :]])
    passed = []
    for flag, _, _ in FLAGS:
        value = getattr(options, flag[2:].replace("-", "_"))
        values = value if isinstance(value, list) else [value]
        passed += [f"{flag}={value}" for value in values if value]
    if options.insecure_skip_tls_verify:
        passed.append("--insecure-skip-tls-verify")
    options.global_flags = tuple(passed)
    return options


def place_of_verb(arguments: Sequence[str]) -> int:
    """Return the index of the first argument that is neither a flag nor the value of one."""
    valued, place = {"-s", "-n", *(flag for flag, _, _ in FLAGS)}, 0
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 2 if arguments[place] in valued else 1
    return place


def module(verb: str) -> ModuleType:
    """Return the module of a verb."""
    return importlib.import_module(f"berth_kubectl.commands.{verb}")


def parser(verb: str) -> Parser:
    """Return the parser of a verb."""
    command = module(verb)
    own = Parser(prog=f"{PROGRAM} {verb}", description=VERBS[verb], epilog=f"examples:\n{command.EXAMPLES}\n{EPILOG}")
    command.configure(own)
    passed = own.add_argument_group("flags of kubectl")
    own_flags = own.flags()
    for flag, value, text in FLAGS:
        if flag in own_flags:
            continue  # the command gives it a meaning without a value, too
        action = "append" if flag == "--as-group" else "store"
        names = ("-s", flag) if flag == "--server" else (flag,)
        passed.add_argument(*names, metavar=value, help=text, action=action)
    passed.add_argument(
        "--insecure-skip-tls-verify", action="store_true", help="do not check the API server's certificate"
    )
    own.set_defaults(run=command.run, verb=verb)
    usual: dict[str, Any] = {"output": "", "headers": True, "watch": False, "quiet": False}
    own.set_defaults(**{name: value for name, value in usual.items() if own.get_default(name) is None})
    return own


def _top() -> Parser:
    lines = "\n".join(f"  {verb:<12}{text}" for verb, text in VERBS.items())
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [FLAGS]",
        description="Why a pod waits, who holds the cards, what is free, and what is wrong with an installation.",
        epilog=f"commands:\n{lines}\n\n`{PROGRAM} COMMAND --help` shows flags and examples.\n{EPILOG}",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    return parser


class _Version(argparse.Action):
    """Prints the version, which is read only then: that takes longer than the rest of the start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and end the program."""
        from importlib import metadata

        parser.exit(0, f"{PROGRAM} {metadata.version('berth-operator')}\n")


# --- flags that several verbs have ------------------------------------------------------------------------------


def namespaces(parser: argparse.ArgumentParser) -> None:
    """Add `-n` and `-A`, which comes first."""
    namespace(parser)
    parser.add_argument("-A", "--all-namespaces", dest="all", action="store_true", help="all namespaces")


def no_namespaces(parser: argparse.ArgumentParser) -> None:
    """Add `-n` and `-A` without effect, as kubectl has them for objects that belong to no namespace."""
    parser.add_argument(
        "-n", "--namespace", dest="unused", metavar="NAME", help="accepted without effect: nodes are not namespaced"
    )
    parser.add_argument("-A", "--all-namespaces", dest="unused", action="store_true", help="accepted without effect")


def namespace(parser: argparse.ArgumentParser) -> None:
    """Add `-n` alone."""
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="namespace (default: the context's)")


def selector(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `-l`."""
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help=f"label selector of the {what}: a=b,c")


def forms(parser: argparse.ArgumentParser, allowed: Sequence[str] = FORMS) -> None:
    """Add `-o` and `--no-headers`."""
    parser.add_argument("-o", "--output", default="", choices=allowed, metavar="FORM", help=" | ".join(allowed))
    parser.add_argument("--no-headers", dest="headers", action="store_false", help="do not print the titles of columns")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print notes to standard error")


def watching(parser: argparse.ArgumentParser) -> None:
    """Add `--watch`."""
    parser.add_argument("-w", "--watch", action="store_true", help="keep printing changes until interrupted")
