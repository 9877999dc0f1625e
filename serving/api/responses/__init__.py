"""OpenAI's Responses: one turn, its output as items and as events, kept or not.

    items     what an input is made of          tools    which tools a turn may call
    body      what is read                      asked    the turn that a body asks for
    outline   the response object               history  items -> messages of a chat
    output    a turn's events -> items, and events of this protocol
    made      one response, from its beginning to its end, written down as it goes
    live      responses that outlive their connection
    routes    the paths

Model calls pass the gate that every protocol's do: `Generation`.
"""
