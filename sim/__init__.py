"""Join hardware, workloads and policies into a simulated deployment."""
