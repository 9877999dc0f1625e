"""What outlives a connection.

generation_log        the interface of a durable log; in memory, in SQLite, in Redis: generation_log_*.py
logged_generation     what it holds of one generation: the request as admitted, and the engine's events
careful_writer        writes before anybody reads, and goes on where the log fails
live_generation       a generation that runs in this process, and its readers
durable_generations   starts, follows, cancels, takes up and hands over
"""
