"""One admitted request, from its admission to its end."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from serving.engine.request import GenerateRequest, Priority, TokenEvent
from serving.gateway.ask import Ask
from serving.gateway.principal import ANONYMOUS, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a request has used. Cached tokens are among those of the prompt."""

    prompt: int = 0
    cached: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(slots=True, kw_only=True)
class Lease:
    """Its holder may make the engine requests that it asked for. What they use is counted by the guard, as the engine's
    events pass; `settle` is for work that does not pass there."""

    principal: Principal
    ask: Ask
    priority: Priority
    output_cap: int | None = None  # tokens of each choice, where the server is short of room
    predicted_seconds: float = 0.0  # to the first token, as predicted at admission
    metadata: Mapping[str, str] = field(default_factory=dict)  # for HTTP headers or gRPC trailers of the answer
    admitted_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    _prompt: dict[str, int] = field(default_factory=dict)
    _cached: dict[str, int] = field(default_factory=dict)
    _output: int = 0
    _settled: Tokens | None = None

    @property
    def waiting(self) -> bool:
        return self.first_token_at is None

    @property
    def used(self) -> Tokens:
        if self._settled is not None:
            return self._settled
        return Tokens(prompt=sum(self._prompt.values()), cached=sum(self._cached.values()), output=self._output)

    def settle(self, used: Tokens) -> None:
        """Says what was used, in place of what the guard has counted."""
        self._settled = used

    def shape(self, request: GenerateRequest) -> GenerateRequest:
        """The request as the engine gets it: of this tenant, of this class, under the cap, and sharing cached pages
        with this tenant's requests alone."""
        principal, sampling = self.principal, request.sampling
        if self.output_cap is not None and sampling.max_tokens > self.output_cap:
            sampling = replace(
                sampling, max_tokens=self.output_cap, min_tokens=min(sampling.min_tokens, self.output_cap)
            )
        return replace(
            request,
            sampling=sampling,
            priority=self.priority,
            tenant=principal.tenant,
            tenant_weight=principal.weight,
            cache_salt=request.cache_salt if principal.tenant == ANONYMOUS else _salt(principal, request.cache_salt),
        )

    def note(self, request: GenerateRequest, event: TokenEvent) -> None:
        """An event of the engine's for one of the requests."""
        if event.cached_tokens is not None:
            self._cached[_prompt_of(request.request_id)] = event.cached_tokens
        if event.token_ids or event.finish_reason is not None:
            self._prompt[_prompt_of(request.request_id)] = len(request.prompt_token_ids)
            self.first_token_at = time.monotonic() if self.first_token_at is None else self.first_token_at
        self._output += len(event.token_ids)


def _salt(principal: Principal, given: str) -> str:
    """Length first, so that no tenant's name and salt read as another's."""
    return f"{len(principal.tenant)}:{principal.tenant}:{given}"


def _prompt_of(request_id: str) -> str:
    return request_id
