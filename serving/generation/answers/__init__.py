"""How models write their answers: reasoning, content and tool calls, each family in a form of its own.

answer_form     which forms a chat template is written for, and the reader that they need
answer_reader   an answer's text, as it comes, to its parts
reasoning       what stands between <think> and </think>, or the like
call_forms      the table of the forms in which calls are written
call_parser     calls, told apart from content
call_bodies     what stands inside a call, read
harmony         gpt-oss' channels, which hold all three
"""
