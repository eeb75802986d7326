"""The doctor's checks for vLLM, in the order of the report."""

from __future__ import annotations

from caovand.core.doctor.checks import (
    cache_checks,
    driver_checks,
    link_checks,
    make_checkup,
    model_checks,
    orphan_checks,
)
from caovand.engines.vllm.doctor import machine, model, software
from caovand.engines.vllm.doctor.plugin import PLUGIN_CHECKS

checkup = make_checkup(
    machine.python_checks,
    machine.wsl_checks,
    machine.shared_memory_checks,
    machine.open_file_checks,
    driver_checks,
    machine.card_checks,
    link_checks,
    orphan_checks,
    machine.foreign_memory_checks,
    machine.all_reduce_checks,
    software.release_checks,
    software.toolchain_checks,
    software.flashinfer_checks,
    software.kernel_checks,
    *PLUGIN_CHECKS,
    model_checks(model.describe),
    model.access_checks,
    model.host_memory_checks,
    model.fit_checks,
    model.choice_checks,
    caches=cache_checks("every start has to compile again", min_mib=10 * 1024),
)
