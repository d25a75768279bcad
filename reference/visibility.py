"""The fields of the visibility API's answers, from the TypedDicts of `berth_api.objects.visibility`."""

from berth_operator.apis.aggregated.openapi import Schema, of_type
from berth_operator.apis.visibility.documents import OBJECTS
from reference import definitions
from reference.markdown import page, section


def text() -> str:
    """Return the page."""
    return page(
        "Objects of the visibility API",
        "The fields of what the [visibility API](../visibility.md) answers: `[]` is an entry of a list, `*` a key of a "
        "map. A field without a value may be absent.",
        *(_object(kind, of_type(of)) for kind, of in OBJECTS.items()),
    )


def _object(kind: str, schema: Schema) -> str:
    return section(kind, *schema["description"].split("\n\n"), definitions.fields(schema))
