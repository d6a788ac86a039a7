"""Models from files: ONNX to graph."""
