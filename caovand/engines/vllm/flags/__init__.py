"""The command line of `vllm serve`: how vLLM spells and parses its flags."""
