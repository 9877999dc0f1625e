"""Who asks, what they may, whether there is room, and what it cost: one door for every protocol.

gateway     authenticate, knock, admit: all that a protocol calls
principal   who asks, and what a tier grants             ask         what a request would take
lease       one admitted request, until it ends          guard       the engine, for holders of a lease alone
"""
