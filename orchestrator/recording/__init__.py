"""Recording the real vLLM: what runs here, and (`inside`) what runs in vLLM's environment."""
