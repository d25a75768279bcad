"""`migrate`: run the operator's functions on files, or on what the user may read through kubectl."""

import argparse
from collections.abc import Sequence

from berth_kubectl.errors import CommandError, ReadError
from berth_kubectl.transport.proxy import Proxy
from berth_kubectl.transport.request import Request
from berth_operator.commands.errors import InputError
from berth_operator.commands.migrate import live, running
from berth_operator.commands.migrate.live import ListedKind, Lists, Object, UnreadList


def of_files(options: argparse.Namespace) -> int:
    """Answer about files; return the exit status.

    Raises:
        CommandError: the command line is not valid.
    """
    return _run(options, lambda _: Lists())


def of_cluster(options: argparse.Namespace, proxy: Proxy, namespace: str) -> int:
    """Answer about the live cluster; return the exit status.

    Raises:
        CommandError: the command line is not valid, or there is no answer.
    """

    def get(paths: Sequence[str]) -> Sequence[Object | UnreadList]:
        answers: list[Object | UnreadList] = []
        for answer in proxy.get_all([Request(path=path) for path in paths]):
            if not isinstance(answer, ReadError):
                answers.append(answer)
            elif answer.status:
                answers.append(UnreadList(why=str(answer), missing=answer.is_missing))
            else:
                raise answer
        return answers

    def read(kinds: Sequence[ListedKind]) -> Lists:
        return live.read(get, kinds, "" if options.takeover else namespace)

    return _run(options, read)


def _run(options: argparse.Namespace, read: running.Read) -> int:
    try:
        return running.run(options, read)
    except InputError as error:
        raise CommandError(str(error)) from error
