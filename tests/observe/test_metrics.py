"""The exposition is valid, bounded, and counts each request once."""

import math

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headway.core.output import Usage
from headway.observe.engine_families import ModelStats, make_histogram
from headway.observe.loop_histogram import LoopHistogram
from headway.observe.metrics import Metrics, RequestMeter
from headway.observe.number_histogram import INFER_BATCH_SIZE, QUEUE_TIME, STEP_SIZE, HistogramSpec, NumberHistogram
from headway_wire import infer_server

STATS: ModelStats = {
    "models": {
        "m": {
            "num_running": 2.0,
            "kv_cache_usage": 0.5,
            "preemptions_total": 3.0,
            "client_overshoot_tokens_total": 4.0,
            "wire_cpu_seconds_total": 0.25,
            "padding_tokens_total": 7.0,
        },
        "cold": {},
    },
    "pool": {"pool": {"leases": 2.0, "worker_starts_total": 1.0}},
}


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of the labels' names...) to value; checks the exposition on the way."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert sample.name.startswith("headway_")
            if family.type == "counter":
                assert sample.name.endswith(("_total", "_created"))
            found[sample.name, *(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


def test_the_engines_numbers_are_read_at_the_scrape() -> None:
    told = dict(STATS)
    metrics = Metrics(lambda: told)
    found = samples(metrics)
    assert found["headway_num_requests_running", "m"] == 2
    assert found["headway_num_requests_running", "cold"] == 0
    assert found["headway_kv_cache_usage_perc", "m"] == 0.5
    assert found["headway_num_preemptions_total", "m"] == 3
    assert found["headway_overshoot_tokens_total", "m"] == 4
    assert found["headway_wire_cpu_seconds_total", "m"] == 0.25
    assert found["headway_padding_tokens_total", "m"] == 7
    assert found["headway_pool_leases",] == 2
    assert found["headway_worker_starts_total",] == 1
    told["models"] = {}
    assert ("headway_num_requests_running", "m") not in samples(metrics)


def test_a_request_is_timed_from_its_arrival_and_counted_once() -> None:
    metrics = Metrics(dict)
    meter = RequestMeter(metrics, "m", num_choices=2, arrived_s=10.0)
    meter.on_tokens(0, 1, 11.0)
    meter.on_tokens(1, 1, 11.5)
    meter.on_tokens(0, 2, 12.0)
    meter.on_finish(0, "stop")
    for _ in range(2):
        meter.end(Usage(5, 4, 2), "abort", 14.0)
    found = samples(metrics)
    assert found["headway_time_to_first_token_seconds_sum", "m"] == 1.0
    assert found["headway_time_to_first_token_seconds_count", "m"] == 1
    assert (found["headway_inter_token_latency_seconds_sum", "m"]) == 1.0
    assert found["headway_inter_token_latency_seconds_count", "m"] == 2
    assert found["headway_e2e_request_latency_seconds_sum", "m"] == 4.0
    assert found["headway_prompt_tokens_total", "m"] == 5
    assert found["headway_prompt_tokens_cached_total", "m"] == 2
    assert found["headway_generation_tokens_total", "m"] == 4
    assert found["headway_request_success_total", "stop", "m"] == 1
    assert found["headway_request_success_total", "abort", "m"] == 1


def test_tokens_of_each_choice_and_the_time_between_them() -> None:
    metrics = Metrics(dict)
    meter = RequestMeter(metrics, "m", num_choices=3, arrived_s=0.0)
    for choice, num_tokens, now_s in ((0, 1, 1.0), (0, 1, 1.5), (0, 2, 2.5), (1, 1, 1.0)):
        meter.on_tokens(choice, num_tokens, now_s)
    meter.end(Usage(7, 5, 3), "stop", 3.0)
    found = samples(metrics)
    # Choice 0 made 3 tokens after its first one, in 1.5 s; choice 1 has no token after its first.
    assert found["headway_request_time_per_output_token_seconds_sum", "m"] == 0.5
    assert found["headway_request_time_per_output_token_seconds_count", "m"] == 1
    assert found["headway_request_generation_tokens_sum", "m"] == 5
    assert found["headway_request_generation_tokens_count", "m"] == 2
    assert found["headway_request_max_num_generation_tokens_sum", "m"] == 4
    assert found["headway_request_prompt_tokens_sum", "m"] == 7
    assert found["headway_prompt_tokens_by_source_total", "m", "local_cache_hit"] == 3
    assert found["headway_prompt_tokens_by_source_total", "m", "local_compute"] == 4


def test_a_workers_histogram_is_what_the_librarys_own_would_be() -> None:
    spec = HistogramSpec("h", "h_seconds", "Text.", (0.0625, 0.1, 1, 10))
    ours = NumberHistogram(spec)
    theirs = Histogram(
        "h_seconds", "Text.", ("model_name",), buckets=spec.bounds, registry=(other := CollectorRegistry())
    )
    for value in (0.0625, 0.09375, 0.09375, 1.0, 99.0, 0.0):
        ours.observe(value)
        theirs.labels("m").observe(value)
    family = make_histogram(spec, {"m": ours.values()})
    expected = [s for f in other.collect() for s in f.samples if not s.name.endswith("_created")]
    assert [(s.name.removeprefix("headway_"), s.labels, s.value) for s in family.samples] == [
        (s.name, s.labels, s.value) for s in expected
    ]


def test_an_empty_histogram_sends_nothing_and_is_shown_as_zeros() -> None:
    assert NumberHistogram(QUEUE_TIME).values() == {}
    found = samples(Metrics(lambda: STATS))
    assert found["headway_request_queue_time_seconds_bucket", "+Inf", "m"] == 0
    assert found["headway_request_queue_time_seconds_count", "m"] == 0


def test_the_engines_histograms_and_the_caches_shape_are_shown() -> None:
    steps = NumberHistogram(STEP_SIZE)
    for size in (1, 1, 2048):
        steps.observe(size)
    stats = {"models": {"m": {**steps.values(), "block_size": 16.0, "num_blocks": 4.0, "num_waiting": 3.0}}}
    found = samples(Metrics(lambda: stats))
    assert found["headway_iteration_tokens_total_bucket", "1.0", "m"] == 2
    assert found["headway_iteration_tokens_total_sum", "m"] == 2050
    assert found["headway_cache_config_info", "16", "m", "4"] == 1
    assert found["headway_num_requests_waiting_by_reason", "m", "capacity"] == 3


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = Metrics(dict), Metrics(dict)
    first.http_disconnects.inc()
    assert samples(first)["headway_http_disconnects_total",] == 1
    assert samples(second)["headway_http_disconnects_total",] == 0


def test_every_histogram_ends_in_infinity() -> None:
    metrics = Metrics(dict)
    for histogram in (metrics.first_token, metrics.inter_token, metrics.latency):
        histogram.labels("m").observe(1e9)
    found = samples(metrics)
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        bounds = [float(key[1]) for key in found if key[0] == f"headway_{name}_seconds_bucket"]
        assert bounds == sorted(bounds)
        assert bounds[-1] == math.inf
        assert found[f"headway_{name}_seconds_bucket", "+Inf", "m"] == pytest.approx(1)


def test_the_token_histogram_tells_what_the_librarys_own_would() -> None:
    bounds = (0.0625, 0.1, 1, 10)  # what is observed is exact in binary, and so are the sums
    theirs, ours = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    own = LoopHistogram("h_seconds", "Text.", bounds, "model_name")
    ours.register(own)
    other = Histogram("h_seconds", "Text.", ("model_name",), buckets=bounds, registry=theirs)
    for model, value, count in (("a", 0.0625, 1), ("a", 0.09375, 3), ("b", 1.0, 2), ("b", 99.0, 1), ("a", 0.0, 1)):
        own.labels(model).observe(value, count)
        for _ in range(count):
            other.labels(model).observe(value)
    lines = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == lines
    assert len(lines) == 2 + 2 * 7


def test_requests_to_encoders_are_counted_by_task_and_outcome() -> None:
    metrics = Metrics(dict)
    metrics.encoders.end("e", "rerank", "success", num_tokens=30, seconds=0.004)
    metrics.encoders.end("e", "rerank", "success", num_tokens=12, seconds=0.25)
    metrics.encoders.end("e", "embeddings", "error", num_tokens=0, seconds=2.0)
    found = samples(metrics)
    assert found["headway_encoder_requests_total", "e", "success", "rerank"] == 2
    assert found["headway_encoder_requests_total", "e", "error", "embeddings"] == 1
    assert found["headway_encoder_prompt_tokens_total", "e", "rerank"] == 42
    assert ("headway_encoder_prompt_tokens_total", "e", "embeddings") not in found
    assert found["headway_encoder_request_seconds_bucket", "0.005", "e", "success"] == 1
    assert found["headway_encoder_request_seconds_count", "e", "success"] == 2
    assert found["headway_encoder_request_seconds_sum", "e", "error"] == 2


def test_batches_of_models_of_tensors_are_shown_by_the_bounds_that_their_processes_count_by() -> None:
    assert INFER_BATCH_SIZE.bounds == infer_server.BATCH_SIZES
    numbers = {"infer_batches_total": 2.0, "infer_batch_size_bucket_2_total": 2.0, "infer_batch_size_sum_total": 7.0}
    shown = samples(Metrics(lambda: {"models": {"m": numbers, "llm": {"steps_total": 1.0}}, "pool": {}}))
    assert shown["headway_infer_batches_total", "m"] == 2.0
    assert ("headway_infer_batches_total", "llm") not in shown
    assert shown["headway_infer_batch_size_bucket", "2.0", "m"] == 0.0
    assert shown["headway_infer_batch_size_bucket", "4.0", "m"] == 2.0
    assert shown["headway_infer_batch_size_sum", "m"] == 7.0
