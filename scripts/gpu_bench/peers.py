"""The same attention by torch and by FlashInfer, where they are installed. A peer that is not is named."""

import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

from scripts.gpu_bench.report import Recorder
from scripts.gpu_bench.scale import Scale

PEERS = ("torch", "flashinfer")


def run(scale: Scale, out: Recorder) -> None:
    for name in PEERS:
        if importlib.util.find_spec(name) is None:
            out.note(f"{name} is not installed here: nothing of it was measured")
    if importlib.util.find_spec("torch") is None:
        return
    import torch  # only where it is installed

    if not torch.cuda.is_available():
        out.note("torch sees no CUDA device: nothing of it was measured")
        return
    _torch(scale, out, torch)
    if importlib.util.find_spec("flashinfer") is not None:
        import flashinfer  # pyright: ignore[reportMissingImports]

        _flashinfer(scale, out, torch, flashinfer)


def _torch(scale: Scale, out: Recorder, torch: Any) -> None:
    """Contiguous keys and values: less work than with pages."""
    heads, kv_heads = scale.heads[0]
    attend = torch.nn.functional.scaled_dot_product_attention
    for batch, context in ((1, 16384), (64, 4096), (256, 1024)):
        q, k = _random(torch, (batch, heads, 1), scale), _random(torch, (batch, kv_heads, context), scale)
        v = torch.randn_like(k)
        seconds = _seconds(torch, lambda q=q, k=k, v=v: attend(q, k, v, enable_gqa=True), scale.runs)
        size = 2 * k.numel() * 2
        out.figure(f"torch {torch.__version__}: {batch} decode at {context}, {heads}/{kv_heads}", seconds, bytes=size)
    for tokens in scale.prefills:
        q, k = _random(torch, (1, heads, tokens), scale), _random(torch, (1, kv_heads, tokens), scale)
        v = torch.randn_like(k)
        seconds = _seconds(torch, lambda q=q, k=k, v=v: attend(q, k, v, is_causal=True, enable_gqa=True), scale.runs)
        flops = 2.0 * heads * scale.head_dim * tokens * (tokens + 1)
        out.figure(f"torch {torch.__version__}: prefill of {tokens}, {heads}/{kv_heads}", seconds, flops=flops)


def _flashinfer(scale: Scale, out: Recorder, torch: Any, flashinfer: Any) -> None:
    heads, kv_heads = scale.heads[0]
    size = scale.page_size
    for batch, context in ((1, 16384), (64, 4096), (256, 1024)):
        each = context // size
        pages = torch.randn((batch * each, 2, size, kv_heads, scale.head_dim), device="cuda", dtype=torch.bfloat16)
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        begins = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * each
        order = torch.randperm(batch * each, device="cuda").int()
        last = torch.full((batch,), size, dtype=torch.int32, device="cuda")
        types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        decode.plan(begins, order, last, heads, kv_heads, scale.head_dim, size, **types)
        q = torch.randn((batch, heads, scale.head_dim), device="cuda", dtype=torch.bfloat16)
        seconds = _seconds(torch, lambda decode=decode, q=q, pages=pages: decode.run(q, pages), scale.runs)
        title = f"flashinfer {flashinfer.__version__}: {batch} decode at {context}, {heads}/{kv_heads}"
        out.figure(title, seconds, bytes=pages.numel() * 2)


def _random(torch: Any, lead: tuple[int, ...], scale: Scale) -> Any:
    return torch.randn((*lead, scale.head_dim), device="cuda", dtype=torch.bfloat16)


def _seconds(torch: Any, call: Callable[[], Any], runs: int, queued: int = 20) -> float:
    call()
    taken = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(queued):
            call()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3 / queued)
    return statistics.median(taken)
