"""OpenAI's Responses: one turn, its output as items and as events, kept or not.

    items     what an input is made of          tools    which tools a turn may call
    body      what is read                      asked    the turn that a body asks for
    outline   the response object               history  items -> messages of a chat
    output    a turn's events -> items, and events of this protocol
    made      one response, from its beginning to its end, written down as it goes
    live      responses that outlive their connection
    routes    the paths

    record    where it is written down: in a store, or nowhere
    turn_stores, turn_container, container_files     what tools refer to, looked up before a model is asked
    reference an error of what is not there, by its place in the request

Model calls pass the gate that every protocol's do: `Generation`.
"""
