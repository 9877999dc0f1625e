"""Folders that the programs of turns leave their files in, each its tenant's own, as OpenAI's API has them.

container         facts of a container and of its files
container_store   facts and contents, within a tenant's limits              container_rows   its tables
container_purge   what has expired, what a kill left behind, and what is to be erased
turn_workspace    one of them, as a turn's programs use it
body              what POST reads
routes            the paths of containers                                   file_routes      of their files
containers        all of it over one folder
"""
