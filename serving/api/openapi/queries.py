"""The queries that lists share, as the document describes them (serving/api/listing.py reads them)."""

from serving.api.listing import MOST_LISTED, USUAL_LIMIT
from serving.api.openapi.operation import Query

AFTER = Query(name="after", schema={"type": "string"}, says="The id of the last one that the client has.")
BEFORE = Query(name="before", schema={"type": "string"}, says="The id of the first one that the client has.")
ORDER = Query(name="order", schema={"enum": ["asc", "desc"]}, says="By their creation; the newest first if not given.")


def limit(default: int = USUAL_LIMIT, most: int = MOST_LISTED) -> Query:
    schema = {"type": "integer", "minimum": 1, "maximum": most}
    return Query(name="limit", schema=schema, says=f"So many at most; {default}.")
