# model.weights = fp8 needs a checkpoint quantised to it, served in place of meta-llama/Llama-3.1-8B; the engine reads the format from it, no option is needed
# kv_cache_config.free_gpu_memory_fraction is left at its default: it is a share of what weights leave free; max_tokens limits the pool instead
# other number formats change answers: check their quality, not simulated
# --config is called --extra_llm_api_options before TensorRT-LLM 1.2
trtllm-serve meta-llama/Llama-3.1-8B --max_batch_size 96 --max_num_tokens 2048 --config config.yaml
