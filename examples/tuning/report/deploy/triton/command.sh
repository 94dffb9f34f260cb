# model.weights = fp8 needs a checkpoint quantised to it, served in place of meta-llama/Llama-3.1-8B; the engine reads the format from it, no option is needed
# limits of a step are those of the engine: build it with the trtllm-build line; chunked context needs paged context attention
# other number formats change answers: check their quality, not simulated
# no known option for model.kv = bf16
trtllm-build --checkpoint_dir CHECKPOINT --max_batch_size 96 --max_num_tokens 2048 --tokens_per_block 16
python3 tools/fill_template.py -i tensorrt_llm/config.pbtxt cuda_graph_mode:true,batching_strategy:inflight_fused_batching,enable_chunked_context:true,triton_max_batch_size:96,batch_scheduler_policy:max_utilization,enable_kv_cache_reuse:true,max_tokens_in_paged_kv_cache:954560,max_queue_delay_microseconds:0
