"""What all tests share: one Hypothesis profile, so that a run is the same run everywhere."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "caovan",
    derandomize=True,
    deadline=None,  # a busy machine is no bug
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("caovan")
