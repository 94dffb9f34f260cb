"""What the compiled loop is told: policies, host times, power and clocks of one replica."""

from sim.core.jit import record_type

__all__ = ["KNOBS"]

KNOBS = record_type(
    [
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("long_prefill_token_threshold", "i8"),  # 0 = none
        ("max_num_partial_prefills", "i8"),
        ("block_size", "i8"),
        ("num_blocks", "i8"),
        ("watermark_blocks", "i8"),
        ("dp", "i8"),  # data-parallel ranks, 0 = 1
        ("units", "i8"),  # micro-batches x data-parallel ranks that share a step, 0 = 1
        ("unit_tokens", "i8"),  # most tokens of one of them
        ("chunked", "i8"),
        ("prefill_first", "i8"),  # a step with prompts decodes nothing
        ("hold", "i8"),  # a batch is chosen once and kept until all of it is done
        ("together", "i8"),  # with hold: nobody leaves before the longest is done
        ("fill_size", "i8"),  # wait for that many requests, or for fill_timeout_s
        ("fill_timeout_s", "f8"),
        ("interactive", "i8"),  # 1: ask for rules when the requests change or the rules expire
        ("output_limit", "i8"),  # output tokens of a request at most, 1 = prefill only
        ("receive", "i8"),  # 1: the KV cache of prompts comes from elsewhere
        ("victim", "i8"),  # 0 last admitted, 1 lowest priority, 2 shortest progress
        ("swap_blocks", "i8"),  # host memory for preempted requests, 0 = recompute [block]
        ("swap_out_s", "f8"),  # per block
        ("swap_in_s", "f8"),
        ("reserve", "i8"),  # contiguous: tokens reserved per request, 0 = paged
        ("reserve_prompt", "i8"),  # 1: besides its prompt
        ("caching", "i8"),
        ("eviction", "i8"),  # 0 least recently, 1 least often used, 2 cheapest to recompute
        ("ttl_s", "f8"),  # a cached block is a hit so long after its last use
        ("recompute_token_s", "f8"),  # prefill time per token and per query-key pair
        ("recompute_pair_s", "f8"),
        ("dram_blocks", "i8"),  # KV blocks of the lower tiers, 0 = none
        ("ssd_blocks", "i8"),
        ("dram_s", "f8"),  # seconds per block fetched
        ("ssd_s", "f8"),
        ("dram_latency_s", "f8"),
        ("ssd_latency_s", "f8"),
        ("fetch_always", "i8"),  # 0: only where it is faster than computing
        ("fetch_beside", "i8"),  # 1: a step runs while blocks are fetched layer by layer
        ("fair", "i8"),  # 1: the client that was served least goes first
        ("input_weight", "f8"),  # service of a prompt and of an output token
        ("output_weight", "f8"),
        ("background_seqs", "i8"),  # running background requests at most
        ("background_tokens", "i8"),  # their prompt tokens per step at most
        ("background_free", "i8"),  # blocks that they leave free at admission
        ("queue_limit", "i8"),
        ("impatient", "i8"),  # 1: clients may leave
        ("shed_ttft_s", "f8"),  # refuse requests whose predicted time to first token is longer
        ("shed_token_s", "f8"),  # predicted seconds per prompt token
        ("answer_s", "f8"),  # time of an answer that is known
        ("draft_tokens", "i8"),  # speculation: tokens drafted at most, 0 = none
        ("draft_candidates", "i8"),  # tokens verified at least, where there are drafts
        ("draft_adaptive", "i8"),  # 1: a length of its own for every request
        ("draft_once", "i8"),  # 1: all drafts of a step come from one pass
        ("draft_flops", "f8"),  # of a drafted token
        ("draft_bytes", "f8"),  # weights read by a pass
        ("draft_kv_bytes", "f8"),  # per token of context
        ("draft_seed", "u8"),
        ("in_step", "i8"),  # 1: a step is formed when the output of the last one is known
        ("every_step", "i8"),  # 1: one row per step
        ("log_steps", "i8"),  # 0: keep no step log
        ("fuse", "i8"),  # 0: never take macro-steps
        ("ingest_s", "f8"),
        ("ingest_per_token_s", "f8"),
        ("gather_s", "f8"),  # an idle engine takes requests into its next step for so long
        ("client_s", "f8"),
        ("client_per_request_s", "f8"),
        ("bookkeeping_s", "f8"),
        ("bookkeeping_per_request_s", "f8"),
        ("front_request_s", "f8"),  # of the front end: each request, prompt and output token
        ("front_prompt_s", "f8"),
        ("front_token_s", "f8"),
        ("visible_s", "f8"),  # GPU end to output seen
        ("graph_dispatch_s", "f8"),
        ("graph_level_share", "f8"),  # part of it that the host's level scales
        ("graph_lead_s", "f8"),  # schedule to first kernel of a graph step
        ("piecewise_dispatch_s", "f8"),
        ("piecewise_gap_s", "f8"),  # GPU time lost between the graph pieces of a step
        ("eager_dispatch_s", "f8"),
        ("eager_lead_s", "f8"),
        ("load_rows", "i8"),  # requests up to which kernels are loaded at first use, 0 = none
        ("warm_rows", "i8"),  # requests whose kernels are loaded at the start
        ("graph_tokens", "i8"),  # largest captured batch
        ("level_mean_s", "f8"),  # mean time between changes of the host level
        ("level_low", "f8"),
        ("level_high", "f8"),
        ("level_jitter", "f8"),
        ("idle_w", "f8"),
        ("base_w", "f8"),
        ("j_per_flop", "f8"),  # of 16-bit operands
        ("flop_scale", "f8"),  # energy of a FLOP of the linear layers against a 16-bit one
        ("j_per_weight_byte", "f8"),
        ("j_per_kv_byte", "f8"),
        ("cap_w", "f8"),
        ("window_s", "f8"),
        ("clock_free", "f8"),  # share of the cap below which the clock is always full
        ("full_clock_gain", "f8"),  # time saved against the table at the full clock
        ("capped_gain", "f8"),  # time saved against the table at the cap
        ("full_cap_w", "f8"),  # sustained watts at the TDP; cap_w may be lower
        ("power_exponent", "f8"),
        ("time_exponent", "f8"),
        ("memory_exponent", "f8"),
        ("ambient_c", "f8"),
        ("throttle_c", "f8"),
        ("throttle_per_k", "f8"),  # slowdown per kelvin above it
        ("kelvin_per_w", "f8"),
        ("thermal_s", "f8"),
    ]
)
