#!/usr/bin/env bash
# What `make bench` runs:  run.sh PYTHON
# Environment: HEADWAY_BENCH_DIR     where models and peers are laid out (default .cache/bench)
#              HEADWAY_BENCH_PEERS   peers to compare with (default openvino llamacpp ortgenai vllm)
#              HEADWAY_BENCH_ROUNDS  rounds of each comparison (default 3)
# Every part runs, and the exit status is 1 if one of them is below its bar. All that is printed is also in
# benchmarks/out/bench.log. Run again after an interruption, the comparisons of engines, which take hours, go on with what
# is saved in benchmarks/out/compare*.jsonl; after a whole run they begin anew.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:?usage: run.sh PYTHON}
dir=${HEADWAY_BENCH_DIR:-$here/../.cache/bench}
peers=${HEADWAY_BENCH_PEERS:-openvino llamacpp ortgenai vllm}
rounds=${HEADWAY_BENCH_ROUNDS:-3}
out=$here/out
demo=$dir/models/smollm2-135m-q4_1.gguf
status=0
mkdir -p "$out"
exec > >(tee "$out/bench.log") 2>&1

part() { # HEADING COMMAND...
  echo; echo "## $1"; echo; shift
  "$@" || status=1
}
with() { [[ " $peers " == *" $1 "* ]]; }

# shellcheck disable=SC2086  # the peers are words
nice bash "$here/prepare.sh" "$dir" $peers || exit 2

contests=()
for peer in $peers; do
  # Without AVX-512 vLLM's compiled mode takes over a quarter of an hour to start.
  [[ $peer == vllm ]] && ! grep -q avx512f /proc/cpuinfo && peer=vllm-eager
  contests+=("$peer")
done
all=$(IFS=,; echo "${contests[*]}")
q8=()
with openvino && q8+=(openvino-q8)
with llamacpp && q8+=(llamacpp-q8)

part "What this machine can do" "$python" "$here/roofline.py" --dir "$dir" --out "$out/roofline.json"
part "Offline throughput" "$python" "$here/compare.py" --dir "$dir" --models smollm2-135m,qwen2.5-0.5b-shape \
  --contests "$all" --rounds "$rounds" --roofline "$out/roofline.json" --results "$out/compare.jsonl"
if [[ ${#q8[@]} -gt 0 ]]; then
  part "Offline throughput: Q8_0" "$python" "$here/compare.py" --dir "$dir" --models qwen2.5-0.5b-shape \
    --contests "$(IFS=,; echo "${q8[*]}")" --rounds "$rounds" --roofline "$out/roofline.json" \
    --results "$out/compare-q8.jsonl"
fi
part "Sampling" "$python" "$here/sampling.py" "$demo"
part "A step beside the model" "$python" "$here/step_overhead.py" --at-most-ms 1.0
part "Latency under long prompts" "$python" "$here/latency.py" "$demo"
part "Through HTTP" "$python" "$here/http_streams.py" "$demo"
part "From exec to ready" "$python" "$here/ready_time.py" --at-most 2.0
part "Batching" "$python" "$here/batching.py" "$demo"
part "The KV cache" "$python" "$here/kv_cache.py" "$demo" --at-least 8
part "Chunk sizes" "$python" "$here/chunk_sizes.py" "$demo"
part "Shared prefix" "$python" "$here/prefix_ttft.py" "$demo" --at-least 5
nice bash "$here/prepare.sh" --without-models "$dir" encoders || status=1
part "Embeddings" "$python" "$here/embeddings.py" --dir "$dir" --at-least 1.0
part "On a GPU" "$python" "$here/gpu.py" --dir "$dir"
with llamacpp && part "Accuracy" "$python" "$here/accuracy.py" --dir "$dir"
exit $status
