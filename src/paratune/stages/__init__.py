"""Divides a model into the stages of a pipeline, and finds the weights of each stage."""
