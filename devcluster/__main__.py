"""The command line: `python -m devcluster up|down|env|status|build|pin|images|load`."""

import argparse
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from devcluster import real_node
from devcluster.additions import fleet, installation, kueue
from devcluster.building import downloads, images, oci, programs, steps
from devcluster.control_plane import named
from devcluster.control_plane.api import ApiError
from devcluster.control_plane.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.processes import state
from devcluster.real_node import image, tools


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except (DevclusterError, ApiError, OSError) as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def up(options: argparse.Namespace) -> None:
    """Start a cluster, by default in the background."""
    if options.nodes and options.fleet:
        raise DevclusterError("--nodes and --fleet both describe the nodes: give one of them")
    reason = real_node.obstacle() if options.real_node else None
    if reason:
        raise DevclusterError(reason)
    programs.ensure(download=True)
    place = named.folder(options.name)
    if state.supervisor(place) is not None:
        raise DevclusterError(f"the cluster {options.name} already runs")
    # SIGTERM ends it as Ctrl-C does: through the context manager.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = Cluster(folder=place, download=True)
    with cluster:
        operator: int | None = None
        names: list[str] = []
        with steps.shown(f"filling the cluster {options.name}") as step:
            if options.operator:
                with step("the definitions, rights and policies of Berth"):
                    installation.apply(cluster)
                    if options.kueue:
                        kueue.apply_component(cluster)
                # It starts while the agent does.
                operator = installation.start(cluster, *(["--kueue"] if options.kueue else ()))
            if file := _fleet(cluster, options):
                with step(f"the nodes of {file}"):
                    names = fleet.start(cluster, file)
            if options.kueue:
                with step("Kueue"):
                    kueue.start(cluster)
            if operator is not None:
                with step("the operator"):
                    installation.wait(cluster, operator, nodes=names)
        if options.real_node:
            node = real_node.RealNode(cluster=cluster).start()
            print(f"{node.name} is ready: images {image.NAME}; device plugins in {node.device_plugins}")
        print(f"{options.name} is ready: {cluster.server}")
        print(f'Use it with: eval "$({Path(sys.executable).name} -m devcluster env --name {options.name})"')
        if options.foreground:
            cluster.wait()
        else:
            cluster.detach()


def down(options: argparse.Namespace) -> None:
    """Stop clusters and remove their data."""
    for name in named.names() if options.all else [options.name]:
        named.down(name)
        print(f"{name} is gone")


def env(options: argparse.Namespace) -> None:
    """Print what a shell evaluates to use a cluster."""
    _, cluster = _running(options.name)
    kubectl = programs.find("kubectl", downloaded=True) or programs.ensure(["kubectl"])["kubectl"]
    folders = [kubectl.parent]
    if helm := programs.find("helm"):
        folders.append(helm.parent)
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    print(f'export PATH={shlex.quote(":".join(map(str, folders)))}:"$PATH"')


def status(options: argparse.Namespace) -> None:
    """Show one or every named cluster and the health of its processes."""
    table = Table("name", "server", "nodes", "age", "processes", box=None)
    for name in [options.name] if options.name else named.names():
        table.add_row(name, *_status(name))
    Console().print(table)


def build(options: argparse.Namespace) -> None:
    """Find or build the programs and print their paths."""
    unknown = set(options.programs) - set(programs.PROGRAMS)
    if unknown:
        raise DevclusterError(f"there is no program {', '.join(sorted(unknown))}; see `build --help`")
    names = tuple(options.programs) or programs.CLUSTER
    if options.real_node and not real_node.obstacle():
        names += programs.REAL_NODE
        tools.ensure()
    for name, path in programs.ensure(names).items():
        print(f"{name:24} {path}")


def pin(options: argparse.Namespace) -> None:
    """Pin the image from which a program is downloaded, by the digest that a tag has now."""
    pinned = downloads.pin(
        options.program,
        repository=options.repository or options.program,
        tag=options.tag,
        check=programs.has_pinned_version,
    )
    print(f"{options.program} {pinned.version}: {pinned.digest}")


def write_images(options: argparse.Namespace) -> None:
    """Write the OCI archives of operator and agent to a folder."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in images.IMAGES:
        archive = options.folder / f"{name}.tar"
        shutil.copyfile(images.archive(name), archive)
        print(f"{archive}  {oci.digest(archive)}  {oci.unpacked_bytes(archive) / 1e6:.0f} MB unpacked")


def load(options: argparse.Namespace) -> None:
    """Import OCI archives into the containerd of a cluster's real node."""
    _, cluster = _running(options.name)
    real_node.RealNode(cluster=cluster).attach().import_images(*(archive.resolve() for archive in options.archives))


def _fleet(cluster: Cluster, options: argparse.Namespace) -> Path | None:
    """Return the fleet file of the simulated nodes; None if there are to be none."""
    if options.nodes:
        return fleet.generated(cluster, count=options.nodes, gpus=options.gpus, profile=options.profile)
    return options.fleet or (fleet.EXAMPLE if options.operator and not options.real_node else None)


def _running(name: str) -> tuple[state.State, Cluster]:
    place = named.folder(name)
    cluster_state = state.read(place)
    if state.supervisor(place) is None or cluster_state is None:
        raise DevclusterError(f"the cluster {name} does not run; start it with `up --name {name}`")
    return cluster_state, Cluster(folder=place)


def _status(name: str) -> tuple[str, ...]:
    try:
        cluster_state, cluster = _running(name)
    except DevclusterError:
        starting = state.supervisor(named.folder(name)) is not None
        return "", "", "", "starting" if starting else "[red]stopped; `down` removes what is left[/]"
    processes = [
        f"[green]{name} {pid}[/]" if state.is_alive(pid) else f"[red]{name} ended[/]"
        for name, pid in cluster_state.processes.items()
    ]
    minutes, seconds = divmod(int(time.time() - cluster_state.started), 60)
    return cluster_state.server, _nodes(cluster), f"{minutes} min {seconds:02} s", "\n".join(processes)


def _nodes(cluster: Cluster) -> str:
    try:
        return str(len(cluster.api.get("/api/v1/nodes")["items"]))
    except (ApiError, OSError) as error:
        return f"[red]{type(error).__name__}[/]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devcluster", description=sys.modules["devcluster"].__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("up", help="start a cluster in the background")
    _add_name(command)
    command.add_argument("--nodes", type=int, default=0, metavar="N", help="create nodes node-0 to node-(N-1)")
    command.add_argument("--gpus", type=int, default=8, metavar="N", help="simulated GPUs of each (default: 8)")
    command.add_argument("--profile", default="a100", help="their kind (default: a100)")
    command.add_argument("--fleet", type=Path, metavar="FILE", help="create the nodes of a fleet file instead")
    command.add_argument(
        "--operator",
        action="store_true",
        help="install Berth and start an operator, with the example fleet by default",
    )
    command.add_argument(
        "--real-node", action="store_true", help="add a node with a kubelet and a containerd (as root)"
    )
    command.add_argument("--kueue", action="store_true", help="start Kueue with Berth's rules of counting")
    command.add_argument("--foreground", action="store_true", help="run until Ctrl-C")
    command.set_defaults(command=up)

    command = commands.add_parser("down", help="stop a cluster and remove its data")
    _add_name(command)
    command.add_argument("--all", action="store_true", help="stop every cluster")
    command.set_defaults(command=down)

    command = commands.add_parser("env", help='print shell lines: eval "$(python -m devcluster env)"')
    _add_name(command)
    command.set_defaults(command=env)

    command = commands.add_parser("status", help="show the clusters and their processes")
    command.add_argument("--name", default="", help="show this cluster alone")
    command.set_defaults(command=status)

    command = commands.add_parser("build", help="find or build the programs")
    command.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(programs.PROGRAMS)}")
    command.add_argument("--real-node", action="store_true", help="also what a real node needs, if there can be one")
    command.set_defaults(command=build)

    command = commands.add_parser("pin", help="pin an image from which `up` and the demo download a program")
    command.add_argument("program", choices=programs.PROGRAMS, metavar="program", help="such as kwok")
    command.add_argument("tag", help="such as v0.8.0")
    command.add_argument("--repository", metavar="NAME", help="of the image, such as kwok/kwok (default: the program)")
    command.set_defaults(command=pin)

    command = commands.add_parser("images", help="build the images of operator and agent (as root on Debian 12)")
    command.add_argument("folder", type=Path, help="where to write their OCI archives")
    command.set_defaults(command=write_images)

    command = commands.add_parser("load", help="import images into a cluster's real node (as root)")
    _add_name(command)
    command.add_argument(
        "archives", nargs="+", type=Path, metavar="archive", help="an OCI archive, such as of `images`"
    )
    command.set_defaults(command=load)
    return parser


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default=named.DEFAULT, help=f"which cluster (default: {named.DEFAULT})")


if __name__ == "__main__":
    sys.exit(main())
