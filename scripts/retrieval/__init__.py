"""A small set of documents and questions, and what bench_retrieval measures on it.

recall_set.toml   documents of a few paragraphs, and questions with the words that answer them
recall_set        the set, read         recall   recall@5 of vectors, words, and both
scale             100,000 chunks: time to fill, to search, to open again
"""
