"""Compare the software of two nodes: caovan, the engine's environment, the driver."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.cluster.finding import both_values, finding, older_release
from caovand.core.cluster.node import NodeFacts
from caovand.core.engine.record import Package
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import version_numbers
from caovand.core.facts.shortfalls import DRIVER_OF_CUDA, INSTALL_DRIVER


def software_checks(
    head: NodeFacts, worker: NodeFacts, package: Package | None
) -> Iterator[CheckResult]:
    """Report differing releases, including that of `package`, which starts the ranks."""
    yield from _caovan(head, worker)
    if head.engine != worker.engine:
        yield finding(
            "FAIL",
            f"engine differs: {both_values(head, head.engine, worker, worker.engine)}",
            f'set [engine] kind = "{head.engine}" in /etc/caovan.toml, then: sudo systemctl restart'
            " caovan",
            worker,
        )
    else:  # releases of two different engines cannot be compared
        yield from _environment(head, worker)
        yield from _kernels(head, worker)
        if package is not None:
            yield from _executor(head, worker, package)
    yield from _driver(head, worker)


def versions_text(facts: NodeFacts, package: Package | None) -> str:
    """Installed versions in one line, including the `package` that starts the ranks."""
    releases = (
        ("caovan", facts.caovan),
        (facts.engine, facts.version),
        ("torch", facts.torch),
        ("CUDA", facts.cuda),
        ("NCCL", facts.nccl),
        (package.name, package.release(facts)) if package else ("", ""),
        ("FlashInfer", facts.flashinfer),
        ("plugin", facts.plugin),
        ("Python", _minor(facts.python)),
        ("driver", facts.driver),
    )
    return ", ".join(f"{what} {release}" for what, release in releases if release)


def _caovan(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    if head.caovan == worker.caovan:
        return
    behind = older_release(head, head.caovan, worker, worker.caovan)
    newest = worker.caovan if behind is head else head.caovan
    yield finding(
        "FAIL",
        f"caovan differs: {both_values(head, head.caovan, worker, worker.caovan)}",
        f"sudo apt install ./caovan*.deb, with the packages of {newest}",
        behind,
    )


def _environment(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    install = _install(head, worker)
    for what, at_head, at_worker in (
        (head.engine, head.version, worker.version),
        ("torch", head.torch, worker.torch),
        ("CUDA", head.cuda, worker.cuda),
        ("NCCL", head.nccl, worker.nccl),
        ("FlashInfer", head.flashinfer, worker.flashinfer),
    ):
        if at_head != at_worker:
            text = f"{what} differs: {both_values(head, at_head, worker, at_worker)}"
            yield finding("FAIL", text, install, worker)
    if head.plugin != worker.plugin:
        yield finding(
            "FAIL",
            f"caovan's plugin differs: {both_values(head, head.plugin, worker, worker.plugin)}",
            f"install the package caovan-kernels, then: {install}",
            older_release(head, head.plugin, worker, worker.plugin),
        )
    at_head, at_worker = _minor(head.python), _minor(worker.python)
    if at_head != at_worker:
        yield finding(
            "FAIL",
            f"the engine's Python differs: {both_values(head, at_head, worker, at_worker)}; its"
            " processes send each other pickled objects",
            f"{install} --python {at_head}" if at_head else install,
            worker,
        )


def _kernels(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    """Kernels that a start would compile on only one of the nodes, or could not; the plan follows
    the head."""
    if head.jit_cache != worker.jit_cache:
        releases = both_values(head, head.jit_cache, worker, worker.jit_cache)
        text = f"FlashInfer's prebuilt kernels differ: {releases}"
        yield finding("WARN", text, _install(head, worker), worker)
        return
    if head.jit_cache or not head.flashinfer:
        return
    if head.nvcc and not worker.nvcc:
        yield finding(
            "WARN",
            f"{worker.name} has no nvcc, but {head.name} does: a start can fail at the first "
            f"FlashInfer kernel that is not built on {worker.name}",
            _install(head, worker),
            worker,
        )
    for node, other in ((head, worker), (worker, head)):
        cards = {"sm{}{}".format(*card.compute_capability) for card in node.cards}
        built = {name for name in other.kernels if name.partition(" ")[0] in cards}
        if lacking := sorted(built - set(node.kernels)):
            yield finding(
                "WARN",
                f"FlashInfer's kernels are built on {other.name} but not on {node.name} "
                f"({', '.join(lacking)}): a start compiles them there while every node waits",
                "sudo caovanctl engine build-kernels",
                node,
            )


def _executor(head: NodeFacts, worker: NodeFacts, package: Package) -> Iterator[CheckResult]:
    """Check the package that starts the ranks: different releases refuse each other."""
    at_head, at_worker = package.release(head), package.release(worker)
    for node, here, there in ((head, at_head, at_worker), (worker, at_worker, at_head)):
        if not here:
            text = f"{package.name} is not installed in the engine's environment on {node.name}"
            yield finding("FAIL", text, _pip(package, there), node)
    if at_head and at_worker and at_head != at_worker:
        text = f"{package.name} differs: {both_values(head, at_head, worker, at_worker)}"
        yield finding("FAIL", text, _pip(package, at_head), worker)


def _pip(package: Package, release: str) -> str:
    wanted = f"{package.pip}=={release}" if release else package.pip
    return (
        f"sudo ENGINE -m pip install {wanted}, where ENGINE is the Python of `caovanctl inventory`"
    )


def _install(head: NodeFacts, worker: NodeFacts) -> str:
    command = f"sudo caovanctl engine install {head.version.partition('+')[0]}"
    if "+cpu" in head.version:
        command += " --build cpu"
    # Without --again nothing would happen, because that release is already installed.
    return f"{command} --again" if head.version == worker.version else command


def _minor(python: str) -> str:
    """Shorten 3.12.7 to 3.12: bytecode, which pickled functions contain, is the same for both."""
    return ".".join(python.split(".")[:2])


def _driver(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    """Compare drivers. Even different branches never FAIL.

    A process only uses its own node's driver; over the network, NCCL connects processes, not
    drivers. Each driver must support its own node's CUDA, and CUDA's compatibility packages can
    stand in for one that is too old.
    """
    for node in (head, worker):
        major = next(iter(version_numbers(node.cuda)), 0)
        need = DRIVER_OF_CUDA.get(major, "")
        if node.driver and version_numbers(node.driver) < version_numbers(need):
            yield finding(
                "WARN",
                f"driver {node.driver} on {node.name} is too old for CUDA {node.cuda}",
                f"install driver {need} or newer: {INSTALL_DRIVER}",
                node,
            )
    if head.cards and worker.cards and head.driver != worker.driver:
        yield finding(
            "WARN",
            f"driver differs: {both_values(head, head.driver, worker, worker.driver)}",
            INSTALL_DRIVER,
            older_release(head, head.driver, worker, worker.driver),
        )
