"""The hub's conventions, shared by families: fields of config.json, and how its tensors lie in fused, stacked leaves.

A linear weight of the hub is [out, in]; here it is [in, ..., out ...], so that x @ W reads rows of x.
"""
