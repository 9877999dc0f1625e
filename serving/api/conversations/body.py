"""What POST under /v1/conversations reads."""

from typing import Annotated, Any, ClassVar

import msgspec

from serving.api.metadata import Metadata
from serving.api.responses.body import UserName
from serving.api.responses.items import AnyItem, item_words, plain_items
from serving.api.typed_body import Body

MOST_ITEMS = 20  # at a time, as OpenAI has it

FewItems = Annotated[list[AnyItem], msgspec.Meta(min_length=1, max_length=MOST_ITEMS)]


class ItemsBody(Body, kw_only=True):
    words: ClassVar = item_words("items")

    items: FewItems

    @classmethod
    def prepared(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {**table, "items": plain_items(table["items"])} if "items" in table else table


class ConversationBody(Body, kw_only=True):
    words: ClassVar = item_words("items")

    items: Annotated[list[AnyItem], msgspec.Meta(max_length=MOST_ITEMS)] | None = None
    metadata: Metadata | None = None
    user: UserName | None = None  # whose it is: his data are exported and erased by this name

    @classmethod
    def prepared(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {**table, "items": plain_items(table["items"])} if "items" in table else table


class MetadataBody(Body, kw_only=True):
    metadata: Metadata | None
