"""From a configuration and an inventory to the settings that vLLM is started with."""
