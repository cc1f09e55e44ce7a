"""Weights and KV cache outside the device: where they are, what reading them takes, how much fits."""
