import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from serving.errors import CheckpointError, ConfigError, RequestError, UnsupportedError
from serving.generation.answers.answer_form import PLAIN
from serving.generation.chat_format import ChatFormat, load_chat_format
from serving.generation.checkpoint_text import read_checkpoint_text

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(users=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.users = ns.users + 1 %}{% endif %}
    {%- if message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<tool_response>' ~ message.content ~ '</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
<|start_header_id|>system<|end_header_id|>

{% if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}<|eot_id|>
{%- for message in messages %}
    {%- if loop.index0 > 100 %}{% break %}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ ' [INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{% generation %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endgeneration %}
{%- endif %}
{% endfor %}
"""

CHAT = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "Hi <b>&amp; \n there"},
    {"role": "assistant", "content": "Hello 😀"},
    {"role": "user", "content": "Wetter in Köln?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The "weather" <here>',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def formats() -> Iterator[dict[str, ChatFormat]]:
    shapes = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL}
    made = {name: ChatFormat({"default": text}, SPECIAL, source=name) for name, text in shapes.items()}
    yield made
    for chat_format in made.values():
        chat_format.close()


@pytest.fixture(scope="module")
def reference(byte_level: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(byte_level))


@pytest.mark.parametrize("generation_prompt", [False, True])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize(("name", "template"), [("chatml", CHATML), ("llama3", LLAMA3)])
def test_rendered_text_is_that_of_transformers(
    formats: dict[str, ChatFormat],
    reference: Any,
    name: str,
    template: str,
    tools: list[dict[str, Any]] | None,
    generation_prompt: bool,
) -> None:
    expected = reference.apply_chat_template(
        CHAT, tools=tools, chat_template=template, add_generation_prompt=generation_prompt, tokenize=False
    )
    assert formats[name].render(CHAT, tools, add_generation_prompt=generation_prompt) == expected


def test_a_template_with_raise_exception_and_generation_blocks_renders_as_in_transformers(
    formats: dict[str, ChatFormat], reference: Any
) -> None:
    expected = reference.apply_chat_template(CHAT[1:], chat_template=MISTRAL, tokenize=False)
    assert formats["mistral"].render(CHAT[1:]) == expected


@pytest.mark.parametrize("name", ["chatml", "llama3"])
@pytest.mark.parametrize("ending", ["", "  "])
def test_continue_final_message_leaves_it_open_as_in_transformers(
    formats: dict[str, ChatFormat], reference: Any, name: str, ending: str
) -> None:
    chat = [*CHAT[:2], {"role": "assistant", "content": "The answer is" + ending}]
    template = {"chatml": CHATML, "llama3": LLAMA3}[name]
    expected = reference.apply_chat_template(chat, chat_template=template, continue_final_message=True, tokenize=False)
    rendered = formats[name].render(chat, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
    assert rendered.rstrip().endswith("The answer is")


def test_a_last_message_with_calls_is_not_continued_without_them(formats: dict[str, ChatFormat]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    chat = [*CHAT[:2], {"role": "assistant", "content": "I look.", "tool_calls": [call]}]
    with pytest.raises(RequestError, match="ends with tool_calls") as refused:
        formats["chatml"].render(chat, add_generation_prompt=False, continue_final_message=True)
    assert refused.value.param == "continue_final_message"


def test_tool_calls_with_arguments_as_json_text_render_as_objects(formats: dict[str, ChatFormat]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    chat = [
        CHAT[1],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ]
    text = formats["chatml"].render(chat, TOOLS)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>' in text
    assert "<tool_response>rain</tool_response>" in text


@pytest.mark.parametrize("content", [None, ""])
def test_calls_reach_a_template_that_looks_for_no_content_and_joins_arguments_to_text(content: str | None) -> None:
    """As DeepSeek's: what it takes for an answer without calls loses them, and what is no text it cannot join."""
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}"
        "{% for call in m['tool_calls'] %}{{ '<' + call['function']['name'] + call['function']['arguments'] + '>' }}"
        "{% endfor %}{% else %}{{ '|' + m['content'] }}{% endif %}{% endfor %}"
    )
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    chat = [
        *CHAT[1:2],
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": None},
    ]
    with _format(template) as deepseek:
        assert deepseek.render(chat) == f"|{CHAT[1]['content']}" + '<weather{"city": "Köln"}>|rain|'


def test_a_template_that_cannot_take_no_content_gets_an_empty_one() -> None:
    template = (
        "{% if messages[0].content is not none %}{{ messages[1].content + messages[1].tool_calls[0].function.name }}"
        "{{ messages[1].tool_calls[0].function.arguments.x }}{% endif %}"
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    with _format(template) as joining:
        chat = [*CHAT[1:2], {"role": "assistant", "content": None, "tool_calls": [call]}]
        assert joining.render(chat) == "f1"


def test_extra_variables_reach_the_template(formats: dict[str, ChatFormat]) -> None:
    assert formats["chatml"].render(CHAT, variables={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")


def test_content_parts_become_one_text(formats: dict[str, ChatFormat]) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo" in formats["chatml"].render([{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages must not be empty"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url' is not supported"),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], r"tool_calls\[0\]"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "JSON object"),
        ([{"role": "user", "content": "x"}] * 5000, "at most 4096"),
    ],
)
def test_a_message_that_cannot_be_rendered_is_refused_by_its_place(
    formats: dict[str, ChatFormat], messages: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        formats["chatml"].render(messages)


def test_what_the_template_raises_is_what_the_client_reads(formats: dict[str, ChatFormat]) -> None:
    with pytest.raises(RequestError, match=r"^Conversation roles must alternate") as caught:
        formats["mistral"].render(CHAT)
    assert caught.value.param == "messages"


def test_tools_and_variables_that_the_template_does_not_read_are_refused(formats: dict[str, ChatFormat]) -> None:
    with pytest.raises(UnsupportedError, match="no use for tools"):
        formats["mistral"].render(CHAT[1:], TOOLS)
    with pytest.raises(UnsupportedError, match="does not read enable_thinking"):
        formats["mistral"].render(CHAT[1:], variables={"enable_thinking": True})
    for name in ("messages", "add_generation_prompt", "bos_token", "self"):
        with pytest.raises(RequestError, match=name) as caught:
            formats["chatml"].render(CHAT, variables={name: "x"})
        assert caught.value.param == "chat_template_kwargs"


def test_generation_prompt_and_open_last_message_exclude_each_other(formats: dict[str, ChatFormat]) -> None:
    with pytest.raises(RequestError, match="continue_final_message"):
        formats["chatml"].render(CHAT, continue_final_message=True)


def test_an_error_inside_the_template_names_the_template_and_the_line() -> None:
    template = "{{ messages[0].content }}\n{{ messages[0].absent.field }}"
    with _format(template) as broken, pytest.raises(RequestError, match=r"chat template of testing .*line 2"):
        broken.render(CHAT)


def test_a_template_that_cannot_be_parsed_is_refused_at_load_with_its_line() -> None:
    with pytest.raises(CheckpointError, match=r"chat template of testing.*line 2"):
        ChatFormat({"default": "x\n{% for %}"}, SPECIAL, source="testing")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages.append(1) }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_reaching_for_python_is_refused(template: str) -> None:
    with _format(template) as attack, pytest.raises(CheckpointError, match="may not"):
        attack.render(CHAT)


@pytest.mark.parametrize(
    "bomb",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ [0] * 10**9 }}",
        "{{ 'x'.center(10**10) }}",
        "{{ 'x' | center(10**10) }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ range(9) | slice(10**9) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% for i in range(99999) %}{{ 'x' * 4096 }}{% endfor %}",
    ],
)
def test_a_bomb_ends_with_an_error_and_the_next_chat_renders(bomb: str) -> None:
    template = "{% if messages[0].role == 'system' %}" + bomb + "{% else %}fine{% endif %}"
    with _format(template, seconds=0.5) as chat_format:
        with pytest.raises(RequestError, match="chat template of testing"):
            chat_format.render(CHAT)
        assert chat_format.render(CHAT[1:]) == "fine"


def test_the_worker_sees_no_secrets_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SECRET", "hidden")
    with _format("x") as chat_format:
        chat_format.render(CHAT)
        worker = chat_format._process._worker._process
        assert worker is not None
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
        assert b"WEFT_SECRET" not in environment


def test_the_file_chat_template_jinja_wins_over_the_config_and_the_override_over_both(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert _loaded(tmp_path) == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert _loaded(tmp_path) == "file"
    (tmp_path / "mine.jinja").write_text("override")
    assert _loaded(tmp_path, tmp_path / "mine.jinja") == "override"
    with pytest.raises(ConfigError, match=r"absent\.jinja"):
        _loaded(tmp_path, tmp_path / "absent.jinja")


def test_of_named_templates_tool_use_is_taken_with_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    chat_format = load_chat_format(tmp_path, read_checkpoint_text(tmp_path))
    assert chat_format is not None
    assert (chat_format.render(CHAT), chat_format.render(CHAT, TOOLS)) == ("plain", "1 tools")
    chat_format.close()


def test_the_file_chat_template_jinja_stands_for_the_named_templates_too_as_in_transformers(
    byte_level: Path, tmp_path: Path
) -> None:
    named = [{"name": name, "template": "{{ tools | length }} of the config"} for name in ("default", "tool_use")]
    config = json.loads((byte_level / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    (tmp_path / "tokenizer.json").write_bytes((byte_level / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ tools | length }} of the file")
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(CHAT, tools=TOOLS, tokenize=False)
    chat_format = load_chat_format(tmp_path, read_checkpoint_text(tmp_path))
    assert chat_format is not None
    assert chat_format.render(CHAT, TOOLS) == theirs == "1 of the file"
    chat_format.close()


def test_a_checkpoint_without_a_template_has_no_chat_format(tmp_path: Path) -> None:
    assert load_chat_format(tmp_path, read_checkpoint_text(tmp_path)) is None


def test_a_developer_is_the_system_to_a_template_that_does_not_know_one() -> None:
    asked = [{"role": "developer", "content": "brief"}, {"role": "user", "content": "hi"}]
    roles = "{% for m in messages %}{{ m.role }} {% endfor %}"
    with _format(roles) as unknowing:
        assert unknowing.render(asked) == "system user "
    with _format(roles + "{# developer #}") as knowing:
        assert knowing.render(asked) == "developer user "
    assert asked[0]["role"] == "developer"


def test_a_refusal_is_the_content_of_an_assistant_that_has_no_other(formats: dict[str, ChatFormat]) -> None:
    def turn(**fields: object) -> str:
        return formats["chatml"].render([{"role": "assistant", **fields}], add_generation_prompt=False)

    refused = turn(content="I will not.")
    assert turn(refusal="I will not.") == refused
    assert turn(content=None, refusal="I will not.") == refused
    assert turn(content="Yes.", refusal="I will not.") == turn(content="Yes.")
    assert turn(content=None, refusal=None) == turn(content="")


def test_the_form_of_answers_is_told_from_the_template(formats: dict[str, ChatFormat]) -> None:
    assert formats["chatml"].answer_form(with_tools=True).calls == "hermes"
    assert formats["chatml"].answer_form(with_tools=True).reasoning == "think"
    assert formats["llama3"].answer_form(with_tools=True).calls == "llama3"
    assert formats["mistral"].answer_form(with_tools=False) == PLAIN
    assert formats["llama3"].reads("tools")
    assert not formats["mistral"].reads("tools")


def test_reasoning_is_thinking_where_the_template_reads_that() -> None:
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "reasoning_content": "z"}]
    with _format("{{ messages[1].thinking }}{{ messages[1].content }}") as thinking:
        assert thinking.render(chat) == "zy"


@contextmanager
def _format(template: str, seconds: float = 10.0) -> Iterator[ChatFormat]:
    chat_format = ChatFormat({"default": template}, SPECIAL, source="testing", seconds=seconds)
    try:
        yield chat_format
    finally:
        chat_format.close()


def _loaded(folder: Path, override: Path | None = None) -> str:
    chat_format = load_chat_format(folder, read_checkpoint_text(folder), override)
    assert chat_format is not None
    text = chat_format.render(CHAT)
    chat_format.close()
    return text
