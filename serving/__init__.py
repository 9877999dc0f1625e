"""weft's server: the path of one request, and the order of the layers.

    api           parses and validates HTTP into one internal request, writes the answer
    generation    text in, text out: chat format, tokenizer, detokenizer, stop strings
    engine        token ids in, token ids out: scheduler, pages, batches, device programs
    config, observability, errors

A layer imports only what stands below it. `app.py` is the one place where objects are built and wired; `cli.py` stands
above it. The API process never imports JAX: only `engine/steps.py`, `engine/sampling.py` and `engine/executor.py` do.
"""
