"""How an environment with vLLM is proven."""

from __future__ import annotations

from caovand.core.engine.install import Imports, Install
from caovand.engines.vllm import releases

# The platform knows which of its libraries suits this CPU. A failure is only a warning there; the
# second attempt has its text. The libraries for CPUs without AVX-512 load without becoming a
# module, and a second one aborts.
_KERNELS = """
here = importlib.import_module("vllm.platforms").current_platform
report["platform"] = here.device_type
here.import_kernels()
if not (
    any(name.startswith("vllm._C") for name in sys.modules)
    or any(name.startswith("_C::") for name in torch._C._dispatch_get_all_op_names())
):
    attempt("vllm._C")
"""
INSTALL = Install(
    versions={"cuda": releases.name(releases.REFERENCE), "cpu": "0.32.0"},
    imports=Imports(
        modules=("vllm",),
        kernels=_KERNELS,
        plugins="vllm.general_plugins",
        env={"VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": ""},
    ),
    takes_plugin=True,
)
