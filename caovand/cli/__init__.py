"""The commands people type: caovanctl (one file per verb), caovan-vllm-serve, the doctor."""
