"""What a checkpoint's JSON files say about text: special tokens, chat templates, default sampling."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.errors import CheckpointError

NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LARGEST = 2**63  # more than any option means


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """generation_config.json's, where it has them. `do_sample` is ignored: a client asks for greedy by temperature."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointText:
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    more_special_tokens: tuple[str, ...] = ()
    added_tokens: Mapping[int, AddedToken] = field(default_factory=dict)
    split_special_tokens: bool = False  # the names of special tokens in a text are text
    # The next five matter to tokenizer.model only: tokenizer.json has rules of its own.
    older_added_tokens: Mapping[int, AddedToken] = field(default_factory=dict)
    add_bos_token: bool | None = None  # None: where the model has one
    add_eos_token: bool | None = None
    legacy: bool = False  # the dummy space also after each special token
    add_prefix_space: bool | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # name -> Jinja; the usual one is "default"
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None  # of the model, as config.json says; its tokenizer may have more tokens, or fewer
    defaults: SamplingDefaults = SamplingDefaults()


def read_checkpoint_text(checkpoint: Path) -> CheckpointText:
    """Raises CheckpointError where a file is malformed; a missing one says nothing."""
    if not checkpoint.is_dir():
        raise CheckpointError(f"{checkpoint}: there is no such checkpoint directory")
    tokenizer = _read(checkpoint / "tokenizer_config.json")
    named = _read(checkpoint / "special_tokens_map.json")
    generation = _read(checkpoint / "generation_config.json")
    config = _read(checkpoint / "config.json")
    where = checkpoint / "tokenizer_config.json"
    # Checkpoints without that table are older than it, and there files of their own have precedence.
    older = tokenizer.get("added_tokens_decoder") is None
    specials = {**tokenizer, **named} if older else {**named, **tokenizer}
    return CheckpointText(
        special_tokens=_special_tokens(specials, where),
        more_special_tokens=_more_special_tokens(specials, where),
        added_tokens=_added_tokens(tokenizer.get("added_tokens_decoder"), where),
        older_added_tokens=_older_added_tokens(checkpoint / "added_tokens.json") if older else {},
        split_special_tokens=bool(_value(tokenizer, "split_special_tokens", bool, where)),
        add_bos_token=_value(tokenizer, "add_bos_token", bool, where),
        add_eos_token=_value(tokenizer, "add_eos_token", bool, where),
        legacy=bool(_value(tokenizer, "legacy", bool, where)),
        add_prefix_space=_value(tokenizer, "add_prefix_space", bool, where),
        chat_templates=_chat_templates(checkpoint, tokenizer.get("chat_template"), where),
        eos_token_ids=_eos_token_ids(generation, config, checkpoint),
        vocab_size=_value(config, "vocab_size", int, checkpoint / "config.json"),
        defaults=_defaults(generation, checkpoint / "generation_config.json"),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(table, dict):
        raise CheckpointError(f"{path}: must hold an object")
    return table


def _value(table: dict[str, Any], key: str, kind: type, where: Path) -> Any:
    value = table.get(key)
    if value is not None and not isinstance(value, kind):
        raise CheckpointError(f"{where}: {key} must be {kind.__name__}, not {value!r}", param=key)
    return value


def _content(token: Any, key: str, where: Path) -> str | None:
    """A special token is written as a string, or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    if content is not None and not isinstance(content, str):
        raise CheckpointError(f"{where}: {key} must be a string or an object with one as content", param=key)
    return content


def _special_tokens(specials: dict[str, Any], where: Path) -> dict[str, str]:
    """By name, as a chat template reads them: those that every tokenizer may have, and the model's own."""
    own = {key: token for key, token in specials.items() if key.endswith("_token") and isinstance(token, str | dict)}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        tokens = specials.get(key)
        own |= tokens if isinstance(tokens, dict) else {}
    named = {**own, **{name: specials.get(name) for name in NAMED_SPECIAL_TOKENS}}
    return {name: content for name, token in named.items() if (content := _content(token, name, where))}


def _more_special_tokens(specials: dict[str, Any], where: Path) -> tuple[str, ...]:
    found: list[str] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = specials.get(key) or []
        if not isinstance(tokens, dict | list):
            raise CheckpointError(f"{where}: {key} must be a list of tokens, or an object of them", param=key)
        for token in tokens.values() if isinstance(tokens, dict) else tokens:
            content = _content(token, key, where)
            if content and content not in found:
                found.append(content)
    return tuple(found)


def _added_tokens(table: Any, where: Path) -> dict[int, AddedToken]:
    if not isinstance(table or {}, dict):
        raise CheckpointError(f"{where}: added_tokens_decoder must be an object", param="added_tokens_decoder")
    added: dict[int, AddedToken] = {}
    for key, token in (table or {}).items():
        content = _content(token, "added_tokens_decoder", where)
        if not key.isdecimal() or not content:
            raise CheckpointError(f"{where}: added_tokens_decoder: {key!r}: {token!r} is not an id and a token")
        flags = token if isinstance(token, dict) else {}
        added[int(key)] = AddedToken(
            content=content,
            special=bool(flags.get("special")),
            lstrip=bool(flags.get("lstrip")),
            rstrip=bool(flags.get("rstrip")),
            single_word=bool(flags.get("single_word")),
            normalized=bool(flags.get("normalized", not flags.get("special"))),
        )
    return added


def _older_added_tokens(path: Path) -> dict[int, AddedToken]:
    """{"text": id}; which of them are special, other files say."""
    table = _read(path)
    for content, token_id in table.items():
        if type(token_id) is not int or token_id < 0 or not content:
            raise CheckpointError(f"{path}: {content!r}: {token_id!r} is not a token and an id")
    return {token_id: AddedToken(content=content, special=False) for content, token_id in table.items()}


def _chat_templates(checkpoint: Path, template: Any, where: Path) -> dict[str, str]:
    """`chat_template.jinja` stands for all of tokenizer_config.json's, and `additional_chat_templates/NAME.jinja` has
    named ones."""
    templates: dict[str, str] = {}
    if isinstance(template, str):
        templates["default"] = template
    elif isinstance(template, list):
        for entry in template:
            name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
            if not isinstance(name, str) or not isinstance(text, str):
                raise CheckpointError(f"{where}: each chat_template must have a name and a template")
            templates[name] = text
    elif template is not None:
        raise CheckpointError(f"{where}: chat_template must be a string or a list of named templates")
    if (file := checkpoint / "chat_template.jinja").is_file():
        templates = {"default": _template(file)}
    for file in sorted(checkpoint.glob("additional_chat_templates/*.jinja")):
        templates[file.stem] = _template(file)
    return templates


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as a chat template: {error}") from error


def _eos_token_ids(generation: dict[str, Any], config: dict[str, Any], checkpoint: Path) -> tuple[int, ...]:
    """generation_config.json's, else config.json's (also where a multimodal one nests it)."""
    nested = config.get("text_config")
    for table in (generation, config, nested if isinstance(nested, dict) else {}):
        ids = table.get("eos_token_id")
        if ids is None or ids == -1:  # both are written for none
            continue
        ids = ids if isinstance(ids, list) else [ids]
        if any(type(token) is not int or token < 0 for token in ids):
            raise CheckpointError(f"{checkpoint}: eos_token_id must be an id or a list of ids, not {ids!r}")
        return tuple(dict.fromkeys(ids))
    return ()


def _defaults(generation: dict[str, Any], where: Path) -> SamplingDefaults:
    values: dict[str, Any] = {}
    for key in ("temperature", "top_p", "min_p", "repetition_penalty", "top_k", "max_new_tokens"):
        value = generation.get(key)
        if value is None:
            continue
        whole = key in ("top_k", "max_new_tokens")
        if key == "top_k" and isinstance(value, float) and value.is_integer():
            value = int(value)  # 50.0, as some tools write it
        kind = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or not abs(value) <= _LARGEST:
            raise CheckpointError(f"{where}: {key} must be a number, not {repr(value)[:40]}", param=key)
        values[key] = value
    return SamplingDefaults(**values)
