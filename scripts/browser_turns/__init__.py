"""Turns in the chat page, with the demo model, its tools and its files."""
