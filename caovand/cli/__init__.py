"""The commands people type: caovanctl (one verb a file), caovan-vllm-serve, the doctor."""
