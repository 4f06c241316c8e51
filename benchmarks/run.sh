#!/usr/bin/env bash
# What `make bench` runs:  run.sh PYTHON
# Environment: HEADWAY_BENCH_DIR  where models and peers are laid out (default .cache/bench)
#              HEADWAY_BENCH_PEERS  peers to compare with (default transformers)
# Every part runs, and the exit status is 1 if one of them is below its bar.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:?usage: run.sh PYTHON}
dir=${HEADWAY_BENCH_DIR:-$here/../.cache/bench}
peers=${HEADWAY_BENCH_PEERS:-transformers}
status=0

# shellcheck disable=SC2086  # the peers are words
bash "$here/prepare.sh" "$dir" $peers || exit 2

# A peer runs in each of its configurations; the better one counts.
engines=headway
bars=()
for peer in $peers; do
  case $peer in
    transformers)
      engines=$engines,transformers,transformers-float32
      bars+=(--at-least transformers=1.0 --at-least transformers-float32=1.0) ;;
    llamacpp) engines=$engines,llamacpp-unified,llamacpp-split ;;
    *) engines=$engines,$peer ;;
  esac
done

echo "## Offline throughput"
"$python" "$here/compare.py" --dir "$dir" --engines "$engines" --workloads eight-128,sixty-four-128 --rounds 3 \
  ${bars[@]+"${bars[@]}"} --out "$here/out/compare.jsonl" || status=1
echo; echo "## A step beside the model"
"$python" "$here/step_overhead.py" --at-most-ms 1.0 || status=1
echo; echo "## Shared prefix"
"$python" "$here/prefix_ttft.py" "$dir/models/smollm2-135m-bf16" --at-least 5 || status=1
exit $status
