"""The gateway's policy: which request goes to which engine, when, and how it ends without one."""
