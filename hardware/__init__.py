"""What the machine is: accelerators, kernels, links, power and prices. Knows no tokens."""
