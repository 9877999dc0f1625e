"""Trains the head of the moderation judge, and measures all judges. See docs/moderation.md."""
