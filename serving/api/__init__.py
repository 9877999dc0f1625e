"""HTTP in, HTTP out, in OpenAI's words.

    http              build_app: which path goes where          server            api_server: the socket, its limits
    front             request ids, errors, the log line         bounded_protocol  limits on headers
    gate              names and origins that may ask            kernel_facts      accept_queue, unread: what waits
    tls               whose certificate was shown               certificate_files  the server's own, renewed
    text_routes       chat and text completions                 token_routes      tokenize, detokenize, models
    health            liveness, readiness, metrics              page              the chat page

    request_body      bytes from the socket, bounded            strict_json       bytes -> object
    listing           lists, page by page                       known_query       no other queries than a path has
    typed_body        object -> struct, or an error by path     sampling_body, chat_body, completion_body, tokenize_body

    generation        one request's streams: slots, merging, measuring            stream_slots, metered_engine
    chat_reply, chat_choice, completion_reply, reply_parts      deltas -> replies
    websocket         several requests over one connection      socket_message, socket_protocol
    files/, batches/  files of requests, run later
    openapi/          all of it, as a document
    grpc/             the same requests, over gRPC              messages/          and in Anthropic's words

    chunks            deltas -> event bytes                     sse               event bytes -> the client, to one end
    connection        a client who leaves                       error_reply       every failure in the shape of its path
    service           what all of them share

An error after a stream began is its last event, in place of [DONE]: a client that waits for [DONE] knows that the
answer is whole. Everything else that fails has an HTTP status.
"""
