"""Stores of files that can be searched: OpenAI's /v1/vector_stores, over serving/orchestrator/retrieval.

bodies          what requests say             store_routes     stores, and the search in one
file_routes     files of a store, batches     vector_stores    all of it, put together
"""
