"""Advice on failures of Ray, which starts vLLM's ranks on several machines, by signature."""

from __future__ import annotations

from collections.abc import Mapping

SPECIAL: Mapping[str, tuple[str, ...]] = {
    "ray.missing": (
        "Ray is not installed in the engine's environment, or not with the same Python on every "
        "node: `caovanctl cluster check` on the head shows which, and how to install it.",
    ),
    "ray.mismatch": (
        "Ray's nodes have different releases of Ray or Python: `caovanctl cluster check` on the "
        "head shows which. Install the head's on all of them.",
    ),
    "ray.token": (
        "This node's token for Ray is another one: all nodes need the same cluster key, and "
        "RAY_AUTH_TOKEN must not be in [engine] env.",
    ),
    "ray.nodes": (
        "Not all nodes joined Ray with their cards: {fact}. Read `caovanctl logs` on the missing "
        "node, and at the firewall between them.",
    ),
    "ray.short": (
        "vLLM requests the node {address} of Ray. If `ray status` shows enough free cards, Ray "
        "knows that node under another address (`ray list nodes`): on each node set VLLM_HOST_IP "
        "to the address that `ray start --node-ip-address` gives it. Otherwise cards are missing:",
        "Ray has fewer cards than the plan has ranks: start Ray on the other nodes (vLLM waits for "
        "them, or says that they are too few), or lower tensor_parallel_size times "
        "pipeline_parallel_size.",
    ),
    "ray.alone": (
        "vLLM started Ray on this machine alone, which has fewer cards than tensor_parallel_size "
        "times pipeline_parallel_size: lower tensor_parallel_size to the number of cards that "
        "nvidia-smi and CUDA_VISIBLE_DEVICES show.",
        "To use the cards of other machines start Ray on them first (`ray start --address=...`), "
        "and set RAY_ADDRESS for vLLM.",
    ),
    "ray.address": (
        "vLLM requests the node {name}, and Ray knows no such node: Ray names nodes by the IP "
        "address under which they joined (`ray list nodes`), and VLLM_HOST_IP names this one "
        "differently.",
        "On each node set VLLM_HOST_IP to the IP address that Ray shows for it, never to a host "
        "name, before `ray start` (with --node-ip-address= the same), and start Ray again. The "
        "cards of {name} may be free nevertheless.",
        "Ray has no node with the address {address} that has a free card: where a machine has "
        "several networks, a node may join Ray under another address than vLLM requests. "
        "Compare with `ray list nodes`, then start Ray on that node with --node-ip-address="
        "{address}, or set VLLM_HOST_IP on each node to the address that Ray lists.",
        "If Ray lists {address}, all its cards are in use: `ray status` shows by how many "
        "placement groups; end those of earlier starts.",
    ),
    "ray.bundle": (
        "vLLM takes one card from each bundle of Ray's placement group, and this one has a bundle "
        "with several: give the deployment as many bundles as ranks, placement_group_bundles="
        "[{{'CPU': 1, 'GPU': 1}}] times tensor_parallel_size, and no num_gpus in "
        "ray_actor_options.",
    ),
    "ray.resources": (
        "Ray has no card for the process that starts vLLM ({driver}). Under Ray Serve give the "
        "replica a placement group in place of a card of its own: placement_group_bundles=[{{'CPU':"
        " 1, 'GPU': 1}}] times the number of ranks, placement_group_strategy STRICT_PACK, no "
        "num_gpus in ray_actor_options. Elsewhere start vLLM on a node with a card, not on a head "
        "without. On one machine --distributed-executor-backend mp does without Ray.",
        "Ray offers fewer cards than the plan has ranks: check that CUDA_VISIBLE_DEVICES on each "
        "node names as many cards as on the head, and that nothing else uses this Ray.",
    ),
}
