"""Restrict what a program may reach, by Landlock, seccomp and dropped capabilities.

A program applies them to itself. `popen` turns a command and its `Confinement` into what
`subprocess` starts: `launch`, executed as a file, which joins the cgroup, confines itself and
becomes the command. `launch` has the rules for files and devices, `call_filter` those for system
calls. The engine, its probes, the page and the gateway start that way; `preparation/confinement`
decides which paths are hidden or writable. `parser_process` runs a parser of untrusted text in a
process with limits on time and memory, which `read_only` keeps from opening files; `caovanctl
explain` applies `read_only` to itself.
"""
