"""Where logical dimensions of weights and pages meet the axes of a device mesh.

mesh.py      the axes, and a mesh from their sizes
rules.py     the table: logical dimension -> mesh axes
params.py    a model's weights on a mesh
topology.py  machines that are not there, to compile for
chips.py     what their chips can do
"""
