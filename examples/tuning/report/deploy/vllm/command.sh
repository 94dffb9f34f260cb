# fp8: the 16-bit checkpoint is quantised as it is loaded
# other number formats change answers: check their quality, not simulated
vllm serve meta-llama/Llama-3.1-8B --quantization fp8 --gpu-memory-utilization 0.9 --max-num-seqs 96 --max-num-batched-tokens 2048 --enable-prefix-caching --scheduling-policy fcfs
