"""Sends the metrics of a run to trackers, without blocking training: TensorBoard, MLflow, Weights & Biases."""
