"""Model families, as Flax modules over a flat ragged batch.

    interface.py     what a family is: a config, a module, and a table of its checkpoint's tensors
    registry.py      which family a checkpoint's config.json names
    checkpoint.py    a checkpoint directory into a model on its devices, leaf by leaf
    leaves.py        the leaves, layer by layer, and a model put together from them
    hub_weights.py   leaves out of a checkpoint of the hub's
    converted.py     leaves out of a checkpoint in weft's own layout, and into one
    host_memory.py   what reading leaves behind, given back
    tensor_files.py  safetensors files as one set of named tensors
    mxfp4.py         those that lie in 4 bits, widened as they are read
    fields.py        its config.json, read with types
    hub.py           how its tensors lie in the leaves of a module
    layers.py        norms, projections, embeddings: a weight is declared once, with its shape, its axes and its init
    rope.py          rotary positions and their scaling kinds
    windows.py       how far back each layer sees
    decoder.py       what is around a family's blocks
    moe.py           routed experts; split_experts.py: over a mesh
    llama.py ...     one file a family

One letter key, alike in annotations, einsums and docstrings:

    T tokens in the flat batch   S sequences        D model width    H query heads    K KV heads
    G query heads per KV head    C head dim         F feed-forward   E experts        L layers
    V vocabulary                 P pages per table
"""
