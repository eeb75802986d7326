"""The command line of `vllm serve`: how it spells and reads its flags."""
