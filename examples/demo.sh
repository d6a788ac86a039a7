#!/bin/sh
# A whole model from its file to tuned native code, in about two minutes: `make demo`, or `sh examples/demo.sh [NETWORK [TIME]]`.
# What is measured goes into a store of its own, which is removed at the end: every run begins with nothing.
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
stormdrop() { printf '$ stormdrop %s\n' "$*"; "$python" -m stormdrop.cli "$@"; }

say "A network as an ONNX file, with random weights: nothing is downloaded."
stormdrop zoo build "$network"

if "$python" -c 'import onnxruntime' 2>/dev/null; then
    against="--against onnxruntime"
    say "Does it compute the same as onnxruntime?"
else
    against=""
    say "onnxruntime is not installed (pip install onnxruntime): there will be no race against it."
    say "Does it compute the same as Stormdrop's own reference, which shares no generated code?"
fi
stormdrop check "$network.onnx"

say "How fast is it, with nothing tuned?"
stormdrop bench "$network.onnx" $against

say "Search for faster kernels. Ctrl-C ends it early, and keeps what was found."
trap : INT # the command takes it, and this goes on
stormdrop tune "$network.onnx" --time "$time"
trap 'exit 130' INT

say "Compile it with what was found, check it again, and time it."
stormdrop compile "$network.onnx"
stormdrop check "$network.onnx" --compiled "$network.sd"
stormdrop bench "$network.onnx" --compiled "$network.sd" $against

say "Next: stormdrop tune YOUR.onnx --time 5m; stormdrop bench YOUR.onnx --against onnxruntime"
