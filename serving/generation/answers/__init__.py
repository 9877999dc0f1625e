"""How models write their answers: reasoning, content and tool calls, each family in a form of its own.

answer_form     the form of one answer, as its chat template tells it
answer_reader   an answer's text, as it comes, to its parts
delta_reader    the same of a choice's deltas, for whoever answers clients
reasoning       what stands between <think> and </think>, or the like
call_forms      the table of the forms in which calls are written
call_parser     calls, told apart from content
call_bodies     what stands inside a call, read
harmony         gpt-oss' channels, which hold all three
"""
