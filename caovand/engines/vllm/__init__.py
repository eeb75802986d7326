"""Everything peculiar to vLLM: its command line, log lines, failures and metrics."""
