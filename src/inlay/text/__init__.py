"""Kernels that read CSV and JSON exactly. The engines and the pipeline run them, on threads or in Spark tasks."""
