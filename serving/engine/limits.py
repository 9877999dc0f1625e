"""What an executor is built for. Fixed before anything is compiled; the scheduler plans within it."""

from dataclasses import dataclass

from serving.engine.batch import BatchLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    max_num_seqs: int
    max_model_len: int  # tokens
    page_size: int  # tokens
    num_pages: int
    token_buckets: tuple[int, ...]  # ascending; the last one is the token budget

    @property
    def table_width(self) -> int:
        return -(-self.max_model_len // self.page_size)

    def layout_for(self, num_tokens: int) -> BatchLayout:
        for bucket in self.token_buckets:
            if num_tokens <= bucket:
                return BatchLayout(bucket, min(bucket, self.max_num_seqs), self.table_width)
        raise ValueError(f"a step of {num_tokens} tokens is over the largest bucket, {self.token_buckets[-1]}")
