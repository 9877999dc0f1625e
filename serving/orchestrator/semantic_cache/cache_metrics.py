"""What the semantic cache counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_COSINES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)


class SemanticCacheMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.lookups = Counter(
            "weft_semantic_cache_lookups",
            "Questions looked up; a shadow's hits are not served.",
            ["mode", "outcome"],
            registry=registry,
        )
        self.shadow_hits = Counter(
            "weft_semantic_cache_shadow_hits",
            "A shadow's hits, by whether the cached answer agreed with the fresh one.",
            ["outcome"],
            registry=registry,
        )
        self.shadow_similarity = Histogram(
            "weft_semantic_cache_shadow_similarity",
            "Cosine of the cached answer and the fresh one, of a shadow's hits.",
            buckets=_COSINES,
            registry=registry,
        )
        self.entries = Gauge("weft_semantic_cache_entries", "Answers kept.", registry=registry)
        self.bytes = Gauge("weft_semantic_cache_bytes", "That the answers kept take.", registry=registry)
