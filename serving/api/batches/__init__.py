"""Batches: files of requests that are answered when there is room.

    batch_body    what creates one                       batch        one batch, and what is shown of it
    batch_store   batches and their results, in SQLite   batch_lines  a line of the file, checked
    line_work     one line, answered as a request is     batch_work   one batch, from its first line to its files
    runner        all batches that are open              routes       the paths under /v1/batches
    retention     what ended long ago, or has expired    batches      all of it, put together

A line is done when its result is committed. A server that was killed goes on with the others.
"""
