"""Makes a trained model smaller: bf16 weights, an ONNX file, an ONNX file with 8-bit integers; checks each result."""
