"""The machine and its kernel: processes, memory, limits, systemd, time."""
