"""The tables of the index in Postgres, and what has to be there before them."""

import asyncpg

from serving.errors import ConfigError

OLDEST = (0, 8)  # of pgvector: the first that goes on with a filtered search until enough is found
MOST_DIMENSIONS = 2000  # that its graph takes

# Not `fastupdate`: it keeps a list of what is new, which each search would read.
_TABLES = """
CREATE TABLE IF NOT EXISTS weft_documents (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store text NOT NULL, file_id text NOT NULL, text bytea NOT NULL, page_starts bigint[] NOT NULL,
    passages bigint NOT NULL DEFAULT 0, windows bigint NOT NULL DEFAULT 0, UNIQUE (store, file_id)
);
CREATE TABLE IF NOT EXISTS weft_passages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    document bigint NOT NULL REFERENCES weft_documents ON DELETE CASCADE, number bigint NOT NULL,
    start bigint NOT NULL, text bytea NOT NULL, windows bigint[] NOT NULL, words tsvector NOT NULL,
    UNIQUE (document, number)
);
CREATE INDEX IF NOT EXISTS weft_passages_by_word ON weft_passages USING gin (words) WITH (fastupdate = off);
"""
# Vectors of one length; those of another encoder may have another table. They go with their document and not with their
# passage, in one statement.
_VECTORS = """
CREATE TABLE IF NOT EXISTS {table} (
    passage bigint NOT NULL, place integer NOT NULL,
    document bigint NOT NULL REFERENCES weft_documents ON DELETE CASCADE,
    vector vector({dimensions}) NOT NULL, PRIMARY KEY (passage, place)
);
CREATE INDEX IF NOT EXISTS {table}_of_document ON {table} (document);
CREATE INDEX IF NOT EXISTS {table}_by_nearness ON {table} USING hnsw (vector vector_cosine_ops);
"""
# English stems without a list of words that are left out: which those are, `query_words` says.
_WORDS = """
CREATE TEXT SEARCH DICTIONARY weft_stems (TEMPLATE = pg_catalog.snowball, LANGUAGE = english);
CREATE TEXT SEARCH CONFIGURATION weft_words (COPY = pg_catalog.english);
ALTER TEXT SEARCH CONFIGURATION weft_words ALTER MAPPING REPLACE pg_catalog.english_stem WITH weft_stems;
"""


def vectors_table(dimensions: int) -> str:
    return f"weft_vectors_{dimensions}"


async def make_tables(db: asyncpg.Connection, dimensions: int | None) -> None:
    """`dimensions` None: no table of vectors is needed. Raises ConfigError, which says what to install."""
    encoding = await db.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"retrieval.url: this database's encoding is {encoding}, and texts need UTF8: "
            "createdb --template=template0 --encoding=UTF8",
            param="url",
        )
    await db.execute(_TABLES)
    there = "SELECT EXISTS (SELECT FROM pg_ts_config WHERE cfgname = 'weft_words' AND pg_ts_config_is_visible(oid))"
    if not await db.fetchval(there):
        await db.execute(_WORDS)
    if dimensions is not None:
        await _check_extension(db)
        await db.execute(_VECTORS.format(table=vectors_table(dimensions), dimensions=dimensions))


async def _check_extension(db: asyncpg.Connection) -> None:
    try:
        await db.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except asyncpg.InsufficientPrivilegeError:
        raise ConfigError(
            "retrieval.url: this database does not have the extension vector, and its user may not create it: have a "
            "superuser run CREATE EXTENSION vector in it",
            param="url",
        ) from None
    except (asyncpg.UndefinedFileError, asyncpg.FeatureNotSupportedError):
        raise ConfigError(
            f"retrieval.url: this Postgres does not have the extension vector: install pgvector {_told(OLDEST)} or "
            "newer beside the server (Debian's packages of PostgreSQL: postgresql-NN-pgvector)",
            param="url",
        ) from None
    query = """
        SELECT extversion, nspname, nspname = ANY(current_schemas(false)) FROM pg_extension
        JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'
    """
    found = await db.fetchrow(query)
    assert found is not None  # made above
    version, schema, is_seen = found
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ConfigError(
            f"retrieval.url: this database's extension vector is {version}: install pgvector {_told(OLDEST)} or newer "
            "beside the server, and have ALTER EXTENSION vector UPDATE run in the database",
            param="url",
        )
    if not is_seen:
        raise ConfigError(
            f"retrieval.url: the extension vector is in the schema {schema}, which is not in the user's search_path",
            param="url",
        )


def _told(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
