"""What a request would take, and its engine requests, without a generator."""

from typing import Any

from serving.access import TierConfig
from serving.engine.request import GenerateRequest, Priority, SamplingParams
from serving.gateway.ask import Ask
from serving.gateway.principal import Principal

MODEL = "weft/scripted"


def principal(tenant: str = "acme", **limits: Any) -> Principal:
    return Principal(key_id=f"{tenant}-key", tenant=tenant, tier="t", limits=TierConfig(**limits))


def ask(
    name: str = "r",
    *,
    prompt: int = 10,
    output: int = 20,
    choices: int = 1,
    stated: bool = True,
    model: str = MODEL,
    priority: Priority | None = None,
    continues: bool = False,
) -> Ask:
    names = [name] if choices == 1 else [f"{name}-{index}" for index in range(choices)]
    return Ask(
        prompt_of=dict.fromkeys(names, name),
        prompt_tokens=prompt,
        output_tokens=choices * output,
        choices=choices,
        longest_prompt=prompt,
        longest_stream=prompt + output,
        longest_output=output,
        output_was_stated=stated,
        model=model,
        stream=True,
        priority=priority,
        continues=continues,
    )


def engine_request(name: str = "r", *, prompt: int = 10, output: int = 20, salt: str = "") -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=tuple(range(prompt)),
        sampling=SamplingParams(max_tokens=output),
        cache_salt=salt,
    )
