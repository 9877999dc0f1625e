"""Mosaic TPU bodies of the kernels.

paged_attention.py   the body of ragged paged attention: three kernels, one pool
pool_layout.py       how pages lie on a TPU
page_writes.py, decode.py, prefill.py   the three kernels
page_ring.py, walk.py, softmax.py       what they are made of
blocks.py            sizes of blocks, and what they are unless tuned
"""
