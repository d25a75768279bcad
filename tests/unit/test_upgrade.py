"""An operator ends when the API server's version differs from the version at the operator's start."""

from collections.abc import Iterator

import pytest

from berth_operator.clients.leader import TermLostError
from berth_operator.process import upgrade


async def test_the_process_ends_when_the_version_is_another_one() -> None:
    # A server that does not say its version, or does not answer, has not been upgraded.
    answers: Iterator[int | None] = iter((36, None, 36, 37))

    async def version() -> int | None:
        return next(answers)

    with pytest.raises(TermLostError, match=r"^the API server is of Kubernetes 1\.37 now, and was of 1\.36$"):
        await upgrade.run(version, 36, period=0.0)
    assert next(answers, "all were read") == "all were read"
