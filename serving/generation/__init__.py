"""Text in, text out, over an engine that knows token ids only.

generator          prepare() a request, stream() its deltas: what every protocol calls
request            TextRequest, GenerationOptions; PreparedPrompt; TextDelta
validation         the bounds of every option, and what the unset ones mean
chat_format        messages -> prompt text, by a template that template_process renders in a process of its own
context_window     how long a sequence may be, as config.json says
tokenizer          the protocol; json_tokenizer and sentencepiece_tokenizer, told by checkpoint_text
choice             token events of one choice -> deltas, with detokenizer and stop_strings
tool_calls         calls in the answer's text
"""
