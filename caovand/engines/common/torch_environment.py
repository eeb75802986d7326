"""The first questions for the Python of any engine based on PyTorch."""

ENVIRONMENT = """
import importlib.metadata as metadata, importlib.util, json, os, platform, re, sys

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

def folder(name):
    spec = importlib.util.find_spec(name)
    return os.path.dirname(spec.origin) if spec and spec.origin else None

def torch_cuda():
    try:
        with open(os.path.join(folder("torch"), "version.py")) as source:
            found = re.search(r"^cuda[^=]*= *'([^']+)'", source.read(), re.M)
    except (OSError, TypeError):
        return None
    return found and found.group(1)

def toolkit():  # the environment's own, as caovand.adapters.engine_install.toolkit lays it out
    place = os.path.join(sys.prefix, "cuda")
    return place if os.access(os.path.join(place, "bin", "nvcc"), os.X_OK) else None
"""
"""Functions that begin a probe's script: versions, PyTorch's CUDA, the toolkit."""
