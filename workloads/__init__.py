"""What is asked of the machine: models, their FLOPs and bytes, and request streams."""
