"""One turn of a conversation: what goes before the model, what it may call, what may come out."""
