"""How the served model's hidden states become vectors: what the deployment says, and what the checkpoint's folder does.

A folder in the form of the sentence-transformers library declares it in modules.json: what there is of that is followed
or refused, since other vectors than those the model was trained for would be of no use, and look like them.
"""

from dataclasses import dataclass
from pathlib import Path

from serving.config import Deployment
from serving.engine.embedding import TextFacts
from serving.engine.encoder_folder import (
    MEAN,
    MODULES,
    pooling_modes,
    read_integer,
    read_modules,
    read_object,
    stated_max_tokens,
)
from serving.engine.request import Pooling
from serving.errors import CheckpointError, ConfigError

_POOLINGS = {"lasttoken": Pooling.LAST, MEAN: Pooling.MEAN}
_TABLE = "model_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    pooling: Pooling
    unit: bool  # vectors have length 1
    facts: TextFacts


def read_text_model(deployment: Deployment, window: int) -> TextModel | None:
    """None where the deployment's model embeds nothing. `window` is the engine's, in tokens.

    Raises ConfigError where the table asks for what the folder does not, CheckpointError for a folder that is not
    understood.
    """
    config = deployment.model_embeddings
    if config is None:
        return None
    folder = deployment.model.checkpoint
    path, fields = folder / "config.json", read_object(folder / "config.json")
    dimensions = read_integer(fields, "hidden_size", path)
    asked = None if config.pooling is None else Pooling(config.pooling)
    declared = _declared(folder, dimensions) if (folder / "modules.json").is_file() else None
    if declared is None and asked is None:
        raise ConfigError(
            f'{_TABLE}.pooling must be "last" or "mean": {folder.name} has no modules.json that says how its states '
            "become vectors",
            param=f"{_TABLE}.pooling",
        )
    pooling, unit = declared or (asked, config.normalize is not False)
    assert pooling is not None
    for name, wanted, there in (("pooling", asked, pooling), ("normalize", config.normalize, unit)):
        if wanted is not None and wanted != there:
            raise ConfigError(
                f"{_TABLE}.{name} is {_spelled(wanted)}, but {folder.name} was made for {_spelled(there)} "
                "(modules.json): leave it out",
                param=f"{_TABLE}.{name}",
            )
    if config.min_dimensions is not None and config.min_dimensions > dimensions:
        raise ConfigError(
            f"{_TABLE}.min_dimensions is {config.min_dimensions}, but the vectors of {folder.name} have {dimensions}",
            param=f"{_TABLE}.min_dimensions",
        )
    longest = min(window, stated_max_tokens(folder) or window)
    if config.max_tokens is not None and config.max_tokens > longest:
        raise ConfigError(
            f"{_TABLE}.max_tokens is {config.max_tokens}, but this deployment of {folder.name} reads {longest} tokens",
            param=f"{_TABLE}.max_tokens",
        )
    facts = TextFacts(
        dimensions=dimensions,
        vocab_size=read_integer(fields, "vocab_size", path),
        max_tokens=config.max_tokens or longest,
        reader="the model",
        min_dimensions=config.min_dimensions or dimensions,
        unit=unit,
    )
    return TextModel(pooling=pooling, unit=unit, facts=facts)


def _declared(folder: Path, dimensions: int) -> tuple[Pooling, bool]:
    """The pooling, and whether vectors have length 1. Raises CheckpointError for what is not offered."""
    path, modules = folder / "modules.json", read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds not in (MODULES, MODULES[:-1]):
        raise CheckpointError(
            f"{path}: the modules must be Transformer, Pooling and, where vectors have length 1, Normalize, not "
            f"{', '.join(kinds)}"
        )
    if modules[0][1] != folder:
        raise CheckpointError(f"{path}: the Transformer must lie beside this file, not in {modules[0][1].name}")
    where = modules[1][1] / "config.json"
    pooling = read_object(where)
    modes = pooling_modes(pooling)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        named = ", ".join(modes) or "nothing"
        raise CheckpointError(f"{where}: pooling must be lasttoken or {MEAN} alone, not {named}")
    width = pooling.get("word_embedding_dimension", pooling.get("embedding_dimension", dimensions))
    if width != dimensions:
        raise CheckpointError(f"{where}: it pools {width!r} numbers, and the model's hidden_size is {dimensions}")
    mode = _POOLINGS[modes[0]]
    if mode is Pooling.MEAN and pooling.get("include_prompt") is False:
        raise CheckpointError(
            f"{where}: include_prompt is false: means that leave a part of a text out are not offered"
        )
    _refuse_default_prompt(folder)
    return mode, kinds == MODULES


def _refuse_default_prompt(folder: Path) -> None:
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return
    fields = read_object(path)
    name, prompts = fields.get("default_prompt_name"), fields.get("prompts")
    if name is not None and (not isinstance(prompts, dict) or prompts.get(name)):
        raise CheckpointError(
            f"{path}: default_prompt_name is {name!r}, a prompt before every text, which is not offered: set it to "
            "null, and have clients write it before theirs"
        )


def _spelled(value: object) -> str:
    return {"True": "true", "False": "false"}.get(str(value), f'"{value}"')
