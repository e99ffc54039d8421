"""Trackers: TensorBoard, MLflow, Weights & Biases and Trackio, told the figures of a run and never waited for."""
