"""The words of `vllm serve`: how it spells and reads its flags."""
