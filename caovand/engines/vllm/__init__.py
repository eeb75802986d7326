"""Everything specific to vLLM: its command line, log lines, failures and metrics."""
