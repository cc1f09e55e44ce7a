"""What runs inside vLLM's environment. Imports vllm, numpy, the standard library and the core.

It is copied beside the core's step law into a folder of its own, so that nothing else of the
environment that servesweep runs in can be seen from vLLM's.
"""
