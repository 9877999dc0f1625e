"""Files that clients leave here, each its tenant's own.

    file_store   facts and contents, within a tenant's limits
    upload       a multipart body, bounded
    expiry       when a file goes by itself
    routes       the paths under /v1/files

A client names a file by the id that the server made, and nothing else of the client's becomes a path.
"""
