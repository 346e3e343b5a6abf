"""What distributed asks of Numba for RMM's buffers."""
