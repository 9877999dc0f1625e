"""Where logical dimensions of weights and pages meet the axes of a device mesh.

Nothing is here yet: weft serves from one device. The families name the dimensions of their weights already (see
`models/layers.py`), and a table from those names to mesh axes is what this package will hold.
"""
