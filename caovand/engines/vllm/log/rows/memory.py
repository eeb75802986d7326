"""Memory of the card and of the host."""

from __future__ import annotations

from caovand.engines.common.logs.signature import Signature, signature

_GIB = r"[\d.]+"

ROWS: tuple[Signature, ...] = (
    # Memory of the card
    signature("oom.load", "cause", "device-oom-load",
         r"Failed to load model - not enough GPU memory"),
    # Before the traceback, which vLLM logs later
    signature("oom.weights", "cause", "device-oom-load",
         r"Failed to create (?:\w{1,20} ){1,3}weights(?:: .{0,60}out of memory"
         r"|\. .{0,60}insufficient memory)"),
    signature("oom.sampler", "cause", "sampler-oom",
         r"CUDA out of memory occurred when warming up sampler with (?P<requests>\d+) dummy"),
    signature("oom.kv.none", "cause", "kv-cache-none",
         r"No available memory for the cache blocks|Cannot auto-fit max_model_len: not enough"),
    signature("oom.kv.len", "cause", "kv-cache-short",
         r"To serve at least one request with the models?'s max seq len \((?P<len>\d+)\),"
         rf"(?:$| \(?(?P<need>{_GIB}) GiB KV\s+cache is needed.{{0,200}}?memory "
         rf"\((?P<have>{_GIB}) GiB\)\."
         r"(?: Based on the available memory, the estimated maximum model length is "
         r"(?P<fits>\d+))?)"),
    signature("oom.kv.tokens", "cause", "kv-cache-short",
         r"max seq len \((?P<len>\d+)\) is larger than the maximum number of tokens that can be "
         r"stored in KV cache \((?P<fits>\d+)\)"),
    # A hybrid model keeps one state for each request that it decodes
    signature("states.short", "cause", "kv-cache-short",
         r"max_num_seqs \((?P<requests>\d{1,9})\) exceeds available Mamba cache blocks "
         r"\((?P<most>\d{1,9})\)|: assert num_cache_lines >= batch$"),
    signature("vram.busy", "cause", "vram-busy",
         rf"Free memory on device(?: \S+)? \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on startup "
         r"is less than desired GPU memory utilization "
         rf"\((?P<share>{_GIB}), (?P<wanted>{_GIB}) GiB\)"),
    signature("vram.race", "cause", "vram-busy",
         r"Error in memory profiling\. Initial free memory (?P<before>[\d.]+)"),
    signature("ram.busy", "cause", "vram-busy",
         rf"Available memory on node (?P<node>\d+) \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on "
         r"startup is less than desired CPU memory utilization "
         rf"\((?P<share>{_GIB}), (?P<wanted>{_GIB})"),
    signature("ram.kv", "cause", "host-oom",
         rf"Available memory on node (?P<node>\d+) \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on "
         rf"kv cache allocation is less than requested memory for kv \((?P<wanted>{_GIB})"),
    signature("ram.alloc", "cause", "host-oom",
         r"DefaultCPUAllocator: can't allocate memory|^MemoryError\b"
         r"|Unable to allocate [\d.]+ [GM]iB for an array|\[Errno 12\] Cannot allocate memory"
         r"|Cannot allocate memory \(12\)|std::bad_alloc"
         r"|Unexpected bus error encountered(?!.{0,60}insufficient shared)"),
    # ninja's 137 is SIGKILL; ninja names the target, the compilers' drivers the killed program
    signature("build.killed", "cause", "host-oom",
         r"^FAILED: \[code=137\] (?P<object>\S{1,400})"
         r"|(?P<compiler>(?<=Killed signal terminated program )[\w+.-]{1,40}"
         r"|(?<=')[^'\s]{1,80}(?=' died due to signal 9)"
         r"|(?<=internal compiler error: Killed \(program )[\w+.-]{1,40})"),
)  # fmt: skip
