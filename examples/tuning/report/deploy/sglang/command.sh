# fp8: the 16-bit checkpoint is quantised as it is loaded
# --mem-fraction-static is left at its default: it covers weights and KV pool only, so it is not the scenario's share of memory; --max-total-tokens sets the pool instead
# other number formats change answers: check their quality, not simulated
# choose the tag of the image in values.yaml
python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --quantization fp8 --enable-mixed-chunk --max-running-requests 96 --chunked-prefill-size 2048 --page-size 16 --radix-eviction-policy lru --schedule-policy fcfs --max-total-tokens 954560
