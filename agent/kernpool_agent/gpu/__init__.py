"""NVIDIA GPUs of this node, read through NVML in a worker process of its own.

A driver call can hang for minutes or crash the process that made it; the agent must neither wait nor die with it.
"""
