"""One admitted request, from its admission to its end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from serving.engine.embedding import EmbedRequest
from serving.engine.request import GenerateRequest, Priority, TokenEvent
from serving.gateway.ask import Ask
from serving.gateway.capacity import Place
from serving.gateway.limit_store import Verdict
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


@dataclass(frozen=True, slots=True)
class QueueNotice:
    """Where a request stands that has no token yet."""

    position: int  # requests before it
    waited_seconds: float
    predicted_seconds: float  # that are left


@dataclass(slots=True, kw_only=True)
class Lease:
    """Its holder may make the engine requests that it asked for. What they use is counted by the guard, as the engine's
    events pass; `settle` is for work that does not pass there."""

    principal: Principal
    ask: Ask
    priority: Priority
    place: Place
    verdict: Verdict | None  # None: the tenant has no limits
    output_cap: int | None  # tokens of each choice, where the server is short of room
    predicted_seconds: float  # to the first token, as predicted at admission
    metadata: Mapping[str, str]  # for HTTP headers or gRPC trailers of the answer
    on_first_token: "Callable[[Lease], None]"
    queue: "Callable[[Lease], QueueNotice]"
    admitted_at: float
    is_waiting: bool = True  # for the first token
    device_seconds: float = 0.0  # once it has ended: an estimate
    _prompts: dict[str, tuple[int, int]] = field(default_factory=dict)  # read so far: tokens, and those of them cached
    _output: int = 0
    _settled: Tokens | None = None

    @property
    def notice(self) -> QueueNotice:
        return self.queue(self)

    @property
    def used(self) -> Tokens:
        """A prompt counts once, however many choices it has, and once it has been read."""
        if self._settled is not None:
            return self._settled
        prompts = self._prompts.values()
        return Tokens(
            prompt=sum(tokens for tokens, _ in prompts),
            cached=sum(cached for _, cached in prompts),
            output=self._output,
        )

    def settle(self, used: Tokens) -> None:
        """Says what was used, in place of what the guard has counted."""
        self._settled = used

    def shape(self, request: GenerateRequest) -> GenerateRequest:
        """The request as the engine gets it: of this tenant, of this class, under the cap, and sharing cached pages
        with this tenant's requests alone."""
        principal, sampling = self.principal, request.sampling
        if self.output_cap is not None and sampling.max_tokens > self.output_cap:
            fewest = min(sampling.min_tokens, self.output_cap)
            sampling = replace(sampling, max_tokens=self.output_cap, min_tokens=fewest)
        return replace(
            request,
            sampling=sampling,
            priority=self.priority,
            tenant=principal.tenant,
            tenant_weight=principal.weight,
            cache_salt=salt_of(principal.tenant, request.cache_salt),
        )

    def shape_texts(self, request: EmbedRequest) -> EmbedRequest:
        """Likewise, of texts."""
        principal = self.principal
        return replace(
            request,
            tenant=principal.tenant,
            tenant_weight=principal.weight,
            cache_salt=salt_of(principal.tenant, request.cache_salt),
        )

    def note(self, request: GenerateRequest, event: TokenEvent) -> None:
        """An event of the engine's for one of the requests."""
        self._output += len(event.token_ids)
        if event.cached_tokens is not None or event.token_ids or event.finish_reason is not None:
            prompt = self.ask.prompt_of[request.request_id]
            self._prompts.setdefault(prompt, (len(request.prompt_token_ids), event.cached_tokens or 0))
        if self.is_waiting and (event.token_ids or event.finish_reason is not None):
            self.is_waiting = False
            self.on_first_token(self)


def salt_of(tenant: str, given: str) -> str:
    """What keeps a tenant's cached pages apart from others'. Length first, so that no tenant's name and salt read as
    another's. Where nobody is told apart there is nothing to keep apart."""
    return given if tenant == ANONYMOUS else f"{len(tenant)}:{tenant}:{given}"
