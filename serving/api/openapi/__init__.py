"""GET /openapi.json: an OpenAPI 3.1 document, made of the routes there are and of the structs that validate bodies.

    operation    what one method of a path takes and gives      operations   all of them
    schemas      structs -> JSON schemas                         replies      what answers look like
    document     routes + operations -> the document            routes       the path itself
    shapes       the words that schemas of answers are written in
    queries      the query parameters that lists share
    container_operations, vector_store_operations, vector_store_replies     those of one topic

A route that no operation describes is an error: a path that is added is described with it.
"""
