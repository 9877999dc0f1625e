"""Anthropic's Messages, over the same request, generator and gateway as the rest.

    body          what is read, and the chat request that it is      reply   the answer, whole and as events
    error_shape   failures as this protocol writes them              routes  the two paths

A body becomes a chat's, so that what a chat may ask for is said in one place.
"""
