"""The machine: its processors, GPUs, topology, programs and processes."""
