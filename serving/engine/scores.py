"""Log-probabilities as the device returns them, made into what a stream reports."""

from dataclasses import dataclass

import numpy as np

from serving.engine.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """One entry a position: the token that was scored, and the k most likely ones."""

    token_ids: np.ndarray  # [N]
    logprobs: np.ndarray  # [N] float32
    ranks: np.ndarray  # [N]
    top_ids: np.ndarray  # [N, k]
    top_logprobs: np.ndarray  # [N, k]

    def at(self, index: int, top: int) -> TokenLogprobs:
        """Position `index`, with the `top` most likely tokens."""
        return TokenLogprobs(
            token_id=int(self.token_ids[index]),
            logprob=float(self.logprobs[index]),
            rank=int(self.ranks[index]),
            top_token_ids=tuple(self.top_ids[index, :top].tolist()),
            top_logprobs=tuple(self.top_logprobs[index, :top].tolist()),
        )
