"""load_engine: from a model on disk and a config to an Engine that answers. The one place that knows all its parts.

The phases that are reported, in order:
 build  open the checkpoint (headers only), write its Program, compare the tensors, plan the memory, map the KV cache
 read   read and convert each weight into the executor, with the fraction that is done
 warm   run a prompt and a token through it, so that the first request does not pay for what is made lazily; then the
        prefixes that are to be kept
"""

import functools
import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.cache.kv_cache import KVCache
from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.config import EngineConfig
from headway.engine.effects import check_device_effects, check_effects
from headway.engine.engine import Engine
from headway.engine.grammars import Grammars
from headway.engine.load_weights import (
    FileWeights,
    LoadProgress,
    Report,
    ReportedWeights,
    check_threads,
    make_costs,
    match_weights,
)
from headway.engine.parallel import RankPart, config_of_rank, make_kv, make_part
from headway.engine.rank_messages import RankLoad
from headway.engine.sampler import Sampler
from headway.engine.scheduling import make_scheduler_limits
from headway.engine.shared_executor import start_shared
from headway.engine.step_time import position_cost
from headway.engine.warm_prefix import pin_warm_prefixes
from headway.errors import InvalidConfig, InvariantBroken, UnsupportedModel
from headway.executor.base import Executor, SamplingExecutor, StepArrays
from headway.executor.device import choose_device, is_cuda, model_available_bytes
from headway.executor.factory import choose_executor, make_executor
from headway.model.program import Program
from headway.model.registry import make_program
from headway.observe.machine import usable_cores
from headway.planner.memory import MemoryPlan, plan_memory
from headway.planner.torch_costs import torch_costs
from headway.scheduler.batching import make_batching
from headway.scheduler.policy import make_policy
from headway.text.tokenizer import make_tokenizer

logger = logging.getLogger(__name__)

MAX_BLOCK_SIZE = 1024
_WARM_UP_TOKENS = 8


def load_engine(
    source: Path, config: EngineConfig, report: Report, *, prepares_grammars: bool = False
) -> tuple[Engine, dict[str, Any]]:
    """Loads; blocks. The engine, and the facts for Ready.info.

    Args:
        source: a GGUF file or a Hugging Face folder.
        report: called at each phase, and at most ten times a second while weights are read.
        prepares_grammars: what constrained answers need is made once the model is there, and not for the first of them.

    Raises:
        UnsupportedModel, CorruptCheckpoint, TensorMismatch: the model's files.
        InvalidConfig, OutOfMemory: what was asked for cannot be had; names the values and the limits.
    """
    _check_config(config)
    config = config_of_rank(replace(config, device=choose_device(config)))
    check_device_effects(config, on_gpu=is_cuda(config.device))
    progress = LoadProgress(report)
    progress.tell("build")
    checkpoint = open_checkpoint(source)
    program = make_program(checkpoint.shape, max_model_len=config.max_model_len)
    if program.is_encoder:
        raise UnsupportedModel(f"{source} is an encoder, which makes no text: take the predictor of encoders")
    weights, unmatched = match_weights(program, checkpoint, config)
    part = make_part(program, weights, 0, config.tensor_parallel_size)
    plan, capacity = _plan(part.program, checkpoint, weights, config)
    progress.tell("read", 0.0)
    reported = RankPart(part.program, ReportedWeights(part.weights, progress))
    executor = _make_executor(reported, plan, capacity, _make_rank_load(source, plan, config))
    weights.check_unchanged()
    weights.close()
    progress.tell("warm")
    started_at = time.perf_counter()
    num_warm = _warm_up(executor, plan)
    warm_s = time.perf_counter() - started_at
    grammars = Grammars(functools.partial(make_tokenizer, checkpoint.text))
    engine = _make_engine(executor, checkpoint, config, plan, grammars)
    engine.step_time.position_cost = position_cost(program)
    engine.step_time.note(num_warm, warm_s)
    num_pinned = pin_warm_prefixes(engine, config, checkpoint.text)
    if prepares_grammars:  # beside the weights it would take a core from whoever waits for the model
        grammars.prepare()
    return engine, _make_info(program, config, plan, unmatched, progress.elapsed_s, num_pinned)


def _check_config(config: EngineConfig) -> None:
    """What can be known before anything is read. Raises InvalidConfig."""
    make_scheduler_limits(config)
    make_policy(config.scheduling_policy, config.scheduling_ageing_s)
    make_batching(
        config.batching, capacity=config.max_num_seqs, max_delay_s=config.max_queue_delay_ms / 1e3, now=time.monotonic
    )
    if not 1 <= config.block_size <= MAX_BLOCK_SIZE:
        raise InvalidConfig(
            f"block_size is {config.block_size}; it must be at least 1 and at most {MAX_BLOCK_SIZE}", param="block_size"
        )
    if config.max_preemptions < 0:
        raise InvalidConfig(
            f"max_preemptions is {config.max_preemptions}; it must be at least 0", param="max_preemptions"
        )
    if not 0 <= config.step_target_s < math.inf:
        raise InvalidConfig(
            f"step_target_s is {config.step_target_s}; it must be at least 0 and finite", param="step_target_s"
        )
    check_threads(config)
    check_effects(config)


def _plan(
    program: Program, checkpoint: Checkpoint, weights: FileWeights, config: EngineConfig
) -> tuple[MemoryPlan, EngineConfig]:
    """The memory, and the config of what executes steps: where a prompt is one step, that has to hold the longest one
    beside streams."""
    costs = make_costs(program, checkpoint, weights, config)
    on_gpu = is_cuda(config.device)
    available = model_available_bytes(config)
    if not on_gpu:  # of which each rank may take its share
        available //= config.tensor_parallel_size
    plan = plan_memory(program, costs, config, available, on_gpu=on_gpu)
    if config.enable_chunked_prefill:
        return plan, config
    most = max(config.max_num_batched_tokens, plan.max_model_len + config.max_num_seqs)
    whole = replace(config, max_model_len=plan.max_model_len, max_num_batched_tokens=most)
    costs = make_costs(program, checkpoint, weights, whole)
    return plan_memory(program, costs, whole, plan.available_bytes, on_gpu=on_gpu), whole


def plan_language_model(source: Path, config: EngineConfig, available_bytes: int) -> MemoryPlan:
    """The memory plan of a model that is not loaded; nothing of its weights is read, and no device is touched. Blocks.

    Args:
        source: a GGUF file or a Hugging Face folder.
        config: its device is cpu or cuda:N.
        available_bytes: of that device.

    Raises as load_engine.
    """
    on_gpu = is_cuda(config.device)
    config = config_of_rank(config)
    checkpoint = open_checkpoint(source)
    program = make_program(checkpoint.shape, max_model_len=config.max_model_len)
    weights, _ = match_weights(program, checkpoint, config)
    part = make_part(program, weights, 0, config.tensor_parallel_size).program
    if on_gpu:
        dtype = "bfloat16" if config.dtype == "auto" else config.dtype
        costs = torch_costs(part, dtype, config, on_gpu=True)
    else:
        costs = make_costs(part, checkpoint, weights, config)
        available_bytes //= config.tensor_parallel_size
    weights.close()
    return plan_memory(part, costs, config, available_bytes, on_gpu=on_gpu)


def _make_executor(part: RankPart, plan: MemoryPlan, config: EngineConfig, load: RankLoad) -> Executor:
    """Of this process alone, or with the other ranks that it starts."""
    kv = make_kv(
        part.program, plan.num_blocks, plan.block_size, plan.kv_dtype, config.device, available=plan.available_bytes
    )
    if load.size == 1:
        return make_executor(part.program, part.weights, kv, config)
    return start_shared(lambda meeting: make_executor(part.program, part.weights, kv, config, meeting), load)


def _make_rank_load(source: Path, plan: MemoryPlan, config: EngineConfig) -> RankLoad:
    """Rank 0's own; those of the others differ in rank and meeting."""
    return RankLoad(
        source=str(source),
        config=config,
        rank=0,
        size=config.tensor_parallel_size,
        meeting="",
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        kv_dtype=plan.kv_dtype,
    )


def _make_engine(
    executor: Executor, checkpoint: Checkpoint, config: EngineConfig, plan: MemoryPlan, grammars: Grammars
) -> Engine:
    sampler = Sampler(
        max_num_seqs=config.max_num_seqs,
        vocab_size=executor.vocab_size,
        max_model_len=plan.max_model_len,
        threads=1 if isinstance(executor, SamplingExecutor) else config.threads or usable_cores(),
    )
    kv_cache = KVCache(
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        enable_prefix_caching=config.enable_prefix_caching and config.enable_kv_cache,
    )
    return Engine(
        executor=executor,
        sampler=sampler,
        kv_cache=kv_cache,
        config=config,
        max_model_len=plan.max_model_len,
        end_token_ids=checkpoint.text.end_token_ids,
        grammars=grammars,
    )


def _make_info(
    program: Program, config: EngineConfig, plan: MemoryPlan, unmatched: list[str], load_s: float, num_pinned: int
) -> dict[str, Any]:
    return {
        "max_model_len": plan.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "vocab_size": program.vocab_size,
        "num_blocks": plan.num_blocks,
        "num_pinned_blocks": num_pinned,
        "block_size": plan.block_size,
        "kv_cache_bytes": plan.kv_bytes * plan.num_ranks,
        "weights_bytes": plan.weights_bytes * plan.num_ranks,
        "workspace_bytes": plan.workspace_bytes * plan.num_ranks,
        "dtype": plan.dtype,
        "kv_cache_dtype": plan.kv_dtype,
        "executor": choose_executor(program, config),
        "device": config.device,
        "tensor_parallel_size": config.tensor_parallel_size,
        "load_s": load_s,
        "plan": [*plan.lines(), *_pinned_lines(plan, num_pinned)],
        "unmatched_tensors": unmatched,
    }


def _pinned_lines(plan: MemoryPlan, num_pinned: int) -> list[str]:
    if not num_pinned:
        return []
    share = num_pinned / plan.num_blocks
    return [f"warm prefixes: {num_pinned * plan.block_size:,} tokens, {share:.0%} of the KV cache, kept for good"]


def _warm_up(executor: Executor, plan: MemoryPlan) -> int:
    """A prompt of a few tokens, then one token behind it, in the first blocks: whoever gets these overwrites them.
    How many tokens these were."""
    num_prompt = min(_WARM_UP_TOKENS, plan.max_model_len - 1)
    for start, end in ((0, num_prompt), (num_prompt, num_prompt + 1)):
        if end > start:
            logits = executor.execute(_make_warm_up_step(start, end, plan.block_size))
            if logits.shape != (1, executor.vocab_size):
                raise InvariantBroken(f"the executor gave logits of shape {logits.shape} for one row")
    return num_prompt + 1


def _make_warm_up_step(start: int, end: int, block_size: int) -> StepArrays:
    positions = np.arange(start, end, dtype=np.int32)
    return StepArrays(
        token_ids=np.zeros(end - start, np.int32),
        positions=positions,
        query_starts=np.array([0, end - start], np.int32),
        context_lens=np.array([end], np.int32),
        block_tables=np.arange(-(-end // block_size), dtype=np.int32)[None],
        slots=positions.astype(np.int64),
        logit_rows=np.array([end - start - 1], np.int32),
    )
