"""The discovery documents of this API; pure."""

from typing import Final

from berth_operator.apis.aggregated import discovery
from berth_operator.apis.list_watch.kinds import GROUP, KINDS, VERSION

DOCUMENTS: Final = discovery.documents(GROUP, VERSION, [discovery.resource(kind) for kind in KINDS])
"""Path -> document."""
