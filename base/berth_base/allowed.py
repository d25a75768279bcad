"""What a setting may be, in words, where pydantic's own message would be a regular expression."""

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class Allowed:
    """Metadata of an annotated type, after its constraints: errors say `must be …` and these words."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the type, with the message in place of its own."""
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="not_allowed", custom_error_message=f"must be {self.words}"
        )
