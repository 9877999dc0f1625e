"""What happened, for whoever wants to read it later or elsewhere: an outbox of events, without text by default."""
