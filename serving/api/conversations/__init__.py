"""OpenAI's Conversations: names for the ends of growing trees of responses.

body     what is read        routes   the paths
"""
