"""From a configuration and an inventory to the settings vLLM is started with."""
