#!/bin/sh
# Compiles, checks, tunes and races a model: `make demo`, or `sh examples/demo.sh [NETWORK [TIME]]`.
# Measurements go into a store of the demo's own, which is removed at the end: every run begins with nothing.
set -eu

network=${1:-resnet18}
time=${2:-60s}
python=${PYTHON:-python3}
STORMDROP_CACHE_DIR=$(mktemp -d)
export STORMDROP_CACHE_DIR
trap 'rm -rf "$STORMDROP_CACHE_DIR"' EXIT
trap 'exit 130' INT TERM
cd "$STORMDROP_CACHE_DIR"

say() { printf '\n# %s\n' "$*"; }
stormdrop() { printf '$ stormdrop %s\n' "$*"; "$python" -m stormdrop "$@"; }

if "$python" -c 'import onnxruntime' 2>/dev/null; then
    reference="onnxruntime"
    against="--against onnxruntime"
else
    reference="Stormdrop's reference interpreter"
    against=""
    say "onnxruntime is not installed (pip install onnxruntime): the race is run without it."
fi

say "1. Compile: $network as an ONNX file with random weights (nothing is downloaded), then as native code."
stormdrop zoo build "$network"
stormdrop compile "$network.onnx"

say "2. Check: the outputs of the compiled model beside those of $reference."
stormdrop check "$network.onnx" --compiled "$network.sd"

say "3. Tune: search for $time, then prove and time the winners. Ctrl-C ends the search early and keeps the best."
printf '# The measurements are kept until the demo ends.\n'
trap : INT # the command handles Ctrl-C, and the demo continues
stormdrop tune "$network.onnx" --time "$time"
trap 'exit 130' INT

say "4. Race: first the untuned model of act 1, then the tuned model, compiled and checked anew."
stormdrop bench "$network.onnx" --compiled "$network.sd" --time 1 $against
stormdrop compile "$network.onnx" -o tuned.sd
stormdrop check "$network.onnx" --compiled tuned.sd
stormdrop bench "$network.onnx" --compiled tuned.sd --time 1 $against

say "Next, with a model of your own: $python -m stormdrop tune YOUR.onnx --time 5m, then bench or compile."
