"""From a config to the scheduler of an engine."""

from collections.abc import Callable

from headway.cache.kv_cache import KVCache
from headway.config import EngineConfig
from headway.scheduler.batching import make_batching
from headway.scheduler.pace import Pace
from headway.scheduler.policy import make_policy
from headway.scheduler.scheduler import Scheduler, SchedulerLimits


def make_scheduler(config: EngineConfig, cache: KVCache, pace: Pace, now: Callable[[], float]) -> Scheduler:
    """With the config's policy and batching. Raises InvalidConfig."""
    return Scheduler(
        make_scheduler_limits(config),
        cache,
        policy=make_policy(config.scheduling_policy, config.scheduling_ageing_s),
        batching=make_batching(
            config.batching, capacity=config.max_num_seqs, max_delay_s=config.max_queue_delay_ms / 1e3, now=now
        ),
        pace=pace,
    )


def make_scheduler_limits(config: EngineConfig) -> SchedulerLimits:
    """The scheduler's part of a config. Raises InvalidConfig."""
    return SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_chunked_prefill=config.enable_chunked_prefill,
        enable_kv_cache=config.enable_kv_cache,
        max_preemptions=config.max_preemptions,
    )


def max_step_tokens(config: EngineConfig, max_model_len: int) -> int:
    """The largest step: without chunks the first to catch up may go over the limit, beside streams."""
    if config.enable_chunked_prefill:
        return config.max_num_batched_tokens
    return max(config.max_num_batched_tokens, max_model_len + config.max_num_seqs)
