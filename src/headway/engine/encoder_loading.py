"""load_encoder: from an encoder on disk and a config to an EncoderEngine that answers; loading.py's counterpart.

Of the config only what concerns weights, threads and the size of steps is read: there is no KV cache and no sampling.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.shape import EncoderShape
from headway.config import EngineConfig
from headway.engine.effects import check_encoder_effects
from headway.engine.encoder import EncoderEngine, EncoderLimits
from headway.engine.load_weights import (
    LoadProgress,
    Report,
    ReportedWeights,
    check_threads,
    make_costs,
    match_weights,
)
from headway.errors import InvariantBroken, UnsupportedModel
from headway.executor.base import EncodingExecutor
from headway.executor.device import choose_device, is_cuda, model_available_bytes
from headway.executor.encoder_step import StepKV, num_step_blocks, step_kv_bytes
from headway.executor.factory import choose_executor, make_executor
from headway.model.program import Program
from headway.model.registry import make_program
from headway.planner.costs import Costs
from headway.planner.encoder import TOKENIZER_TOKEN_BYTES, EncoderPlan, encoder_limit, plan_encoder
from headway.planner.torch_costs import torch_costs

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
"""In which K and V of a step lie."""


def load_encoder(source: Path, config: EngineConfig, report: Report) -> tuple[EncoderEngine, dict[str, Any]]:
    """Loads; blocks. The engine, and the facts for Ready.info. Raises as load_engine."""
    check_threads(config)
    check_encoder_effects(config, source)
    config = replace(config, device=choose_device(config))
    progress = LoadProgress(report)
    progress.tell("build")
    checkpoint = open_checkpoint(source)
    encoder = checkpoint.shape.encoder
    if encoder is None:
        raise UnsupportedModel(f"{source} is a language model, not an encoder")
    program = make_program(checkpoint.shape)
    weights, unmatched = match_weights(program, checkpoint, config)
    sized = _sized(config, program, encoder)
    costs = make_costs(program, checkpoint, weights, sized)
    plan = _plan(program, costs, sized, model_available_bytes(config))
    progress.tell("read", 0.0)
    num_blocks = num_step_blocks(
        max_tokens=sized.max_num_batched_tokens, max_seqs=sized.max_num_seqs, block_size=BLOCK_SIZE
    )
    kv = StepKV(program, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=costs.kv_dtype)
    executor = cast(EncodingExecutor, make_executor(program, ReportedWeights(weights, progress), kv, sized))
    weights.check_unchanged()
    weights.close()
    progress.tell("warm")
    engine = EncoderEngine(executor, _limits(sized, program, encoder))
    vector = engine.warm_up()
    if vector.shape[0] != 1:
        raise InvariantBroken(f"the executor gave vectors of shape {vector.shape} for one text")
    return engine, _make_info(program, encoder, sized, plan, unmatched, progress.elapsed_s, vector.shape[1])


def plan_encoder_model(source: Path, config: EngineConfig, available_bytes: int) -> EncoderPlan:
    """The memory plan of an encoder that is not loaded; nothing of its weights is read, and no device is touched.
    Blocks; raises as load_encoder.

    Args:
        source: as load_encoder's.
        config: its device is cpu or cuda:N.
        available_bytes: of that device.
    """
    checkpoint = open_checkpoint(source)
    encoder = checkpoint.shape.encoder
    if encoder is None:
        raise UnsupportedModel(f"{source} is a language model, not an encoder")
    program = make_program(checkpoint.shape)
    weights, _ = match_weights(program, checkpoint, config)
    sized = _sized(config, program, encoder)
    if is_cuda(config.device):
        costs = torch_costs(program, "bfloat16" if config.dtype == "auto" else config.dtype, sized, on_gpu=True)
    else:
        costs = make_costs(program, checkpoint, weights, sized)
    weights.close()
    return _plan(program, costs, sized, available_bytes)


def _sized(config: EngineConfig, program: Program, encoder: EncoderShape) -> EngineConfig:
    """The config with what steps stay under: the longest text always fits."""
    longest = encoder_limit(config, max_position=program.max_position, trained_for=encoder.max_tokens)
    return replace(
        config,
        max_model_len=longest,
        max_num_batched_tokens=max(config.max_num_batched_tokens, longest),
        block_size=BLOCK_SIZE,
    )


def _plan(program: Program, costs: Costs, config: EngineConfig, available_bytes: int) -> EncoderPlan:
    max_tokens = config.max_num_batched_tokens
    num_blocks = num_step_blocks(max_tokens=max_tokens, max_seqs=config.max_num_seqs, block_size=BLOCK_SIZE)
    return plan_encoder(
        costs,
        kv_bytes=sum(step_kv_bytes(program, costs.kv_dtype, num_blocks * BLOCK_SIZE)),
        max_model_len=config.max_model_len or program.max_position,
        max_tokens=max_tokens,
        tokenizer_bytes=0 if is_cuda(config.device) else program.vocab_size * TOKENIZER_TOKEN_BYTES,
        available_bytes=available_bytes,
    )


def _limits(config: EngineConfig, program: Program, encoder: EncoderShape) -> EncoderLimits:
    return EncoderLimits(
        max_model_len=config.max_model_len or program.max_position,
        max_tokens=config.max_num_batched_tokens,
        max_seqs=config.max_num_seqs,
        vocab_size=program.vocab_size,
        num_token_types=encoder.num_token_types,
    )


def _make_info(
    program: Program,
    encoder: EncoderShape,
    config: EngineConfig,
    plan: EncoderPlan,
    unmatched: list[str],
    load_s: float,
    width: int,
) -> dict[str, Any]:
    return {
        "task": "embed" if encoder.num_labels is None else "score",
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": plan.max_model_len,
        "vocab_size": program.vocab_size,
        "embedding_size": width,
        "weights_bytes": plan.weights_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "kv_cache_bytes": 0,
        "dtype": plan.dtype,
        "executor": choose_executor(program, config),
        "device": config.device,
        "load_s": load_s,
        "plan": plan.lines(),
        "unmatched_tensors": unmatched,
    }
