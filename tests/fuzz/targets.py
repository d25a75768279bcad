"""All parsers of input that may be hostile or damaged."""

from typing import Final

from tests.fuzz import of_agent, of_api, of_claims, of_kueue, of_operator

TARGETS: Final = {
    target.name: target
    for target in (
        *of_api.TARGETS,
        *of_operator.TARGETS,
        *of_claims.TARGETS,
        *of_kueue.TARGETS,
        *of_agent.TARGETS,
    )
}
