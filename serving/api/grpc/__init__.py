"""gRPC in, gRPC out: `weft.v1.Generation`, whose messages are in `client/proto`.

    server             GrpcServer: the port, its limits, drain      front    who asks, ids, failures, the log line
    generation_calls   the methods                                  health   grpc.health.v1
    request_table      a message -> the table of an HTTP body       reply    deltas -> messages
    status             failures as statuses with details        gathered what comes while a message is written

Requests become the same bodies as HTTP's, by the same readers (`api/*_body.py`), and so meet the same checks, the same
admission and the same generator. What differs is only how they are written on the wire.
"""
