"""From a configuration and an inventory to the settings that vLLM is started with.

The context, for example, on its way from the configuration to the flag:

- `planner.make_plan` asks `request.VllmRequest`, whose `begin` makes a `PartialPlan` of the facts,
  and whose `size` sizes it.
- `size`: `size_best` -> `_size_splits` -> `size_on_split` -> `_size_trials` -> `_decide` (the rules
  of `decisions.FIRST`) -> `size_together`, in a `Space` that starts with `fit.fixed_space`.
- `sizing.choice`: `choose` -> `_choose_cache_type` -> `_choose_tower` -> `_choose_stages` ->
  `choose_candidate`, each for one thing that gives way.
- `sizing.search`: `CandidateSearch.fastest` -> `_candidates` -> `_with_longest_context`, which asks
  `memory.estimate.longest_context`.
- `request.VllmRequest.decide` runs the rules of `decisions.SECOND`, `capacity.max_model_len` among
  them, and `write` makes the plan, of which `command.build` makes the command line.
"""
