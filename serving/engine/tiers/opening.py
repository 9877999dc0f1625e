"""The tiers that a deployment asks for, around the executor that it has."""

import hashlib
import json
from pathlib import Path

from serving.config import Deployment
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.tiers.copier import PageCopier
from serving.engine.tiers.host_pages import HostPages, PageForm
from serving.engine.tiers.moves import Tier
from serving.engine.tiers.page_files import FINGERPRINT_BYTES, PageFiles
from serving.engine.tiers.page_tiers import PageTiers
from serving.errors import ConfigError


def open_tiers(deployment: Deployment, executor: Executor, version: str) -> PageTiers | None:
    """None where the deployment has none; `version` is that of the weights. Compiles what copies pages.

    Raises ConfigError where there is no room for what it asks for, or no folder.
    """
    table = deployment.prefix_cache
    if table.host_bytes is None:
        return None
    exchange = executor.page_exchange()
    page_bytes = exchange.form.num_bytes
    slots = table.host_bytes // page_bytes
    if slots < 2 * exchange.batches[-1]:
        raise ConfigError(
            f"prefix_cache.host_bytes is {table.host_bytes}, and copies move up to {exchange.batches[-1]} pages of "
            f"{page_bytes} bytes at once: it must be at least {2 * exchange.batches[-1] * page_bytes}",
            param="host_bytes",
        )
    files, disk_pages = None, 0
    if table.disk is not None:
        disk_pages = table.disk_bytes // page_bytes
        if disk_pages < 1:
            raise ConfigError(
                f"prefix_cache.disk_bytes is {table.disk_bytes}, and a page has {page_bytes}", param="disk_bytes"
            )
        files = PageFiles(table.disk, fingerprint_of(deployment, exchange.form, version, executor.limits), page_bytes)
    tiers = PageTiers(
        PageCopier(exchange, HostPages(exchange.form, slots), files),
        device_pages=executor.limits.num_pages,
        host_pages=slots,
        page_bytes=page_bytes,
        disk_pages=disk_pages,
        on_disk=() if files is None else files.scan(),
    )
    if files is not None:
        tiers.counters[Tier.DISK].damaged, tiers.counters[Tier.DISK].foreign = files.damaged, files.foreign
    return tiers


def fingerprint_of(deployment: Deployment, form: PageForm, version: str, limits: ExecutorLimits) -> bytes:
    """What the bytes of a page depend on beside its digest: how it lies, how it is computed, and by which files.

    The window is part of it, since some models turn keys by it (`models.rope.LongRope`), and so are the layers whose
    states lie in a page.

    The times of the files are part of it, since `version` reads only some of their blocks.
    """
    model, engine = deployment.model, deployment.engine
    facts = {
        "form": [form.shapes, form.words],
        "page_size": engine.page_size,
        "cache_dtype": engine.cache_dtype,
        "model": [model.dtype, model.quantization, model.group_size, model.activations],
        "window": limits.max_model_len,
        "watched": None if limits.watched is None else limits.watched.layers,
        "version": version,
        "files": _files(model.checkpoint),
    }
    text = json.dumps(facts, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=FINGERPRINT_BYTES).digest()


def _files(checkpoint: Path) -> list[list[object]]:
    found = sorted(checkpoint.glob("*.safetensors"))
    return [[path.name, (status := path.stat()).st_size, status.st_mtime_ns] for path in found]
