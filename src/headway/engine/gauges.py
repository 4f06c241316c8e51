"""An engine's own numbers for Stats: what is open, what the KV cache holds, and the names of its counters."""

from headway.cache.kv_cache import KVCache
from headway.engine.grammars import Grammars
from headway.scheduler.scheduler import Scheduler

COUNTERS = (
    "accepted_total",
    "refused_total",
    "steps_total",
    "failed_steps_total",
    "prompt_tokens_total",
    "computed_tokens_total",
    "sampled_tokens_total",
    "forced_tokens_total",
    "padding_tokens_total",
    "finished_stop_total",
    "finished_length_total",
    "finished_abort_total",
    "finished_error_total",
)
"""What the engine counts itself, since its start."""


def read_gauges(num_requests: int, scheduler: Scheduler, cache: KVCache) -> dict[str, float]:
    """What they are now, and the counters that the two keep themselves."""
    return {
        "num_requests": num_requests,
        "num_running": len(scheduler.running),
        "num_waiting": len(scheduler.waiting),
        "num_blocks": cache.num_blocks,
        "num_free_blocks": cache.num_free_blocks,
        "num_cached_blocks": cache.num_cached_blocks,
        "num_used_blocks": cache.num_used_blocks,
        "num_pinned_blocks": cache.num_pinned_blocks,
        "block_size": cache.block_size,
        "kv_cache_usage": cache.num_used_blocks / cache.num_blocks,
        "preemptions_total": scheduler.num_preemptions,
        "prefix_cache_queries_total": cache.num_prefix_queries,
        "prefix_cache_hits_total": cache.num_prefix_hits,
    }


def read_grammars(grammars: Grammars | None, num_waiting: int) -> dict[str, float]:
    """What compiling grammars took so far, and who waits for it."""
    return {
        "num_waiting_for_grammars": num_waiting,
        "grammars_total": 0 if grammars is None else grammars.num_asked,
        "grammar_hits_total": 0 if grammars is None else grammars.num_hits,
        "grammar_failures_total": 0 if grammars is None else grammars.num_refused,
        "grammar_compile_seconds_total": 0.0 if grammars is None else grammars.compile_s,
    }
