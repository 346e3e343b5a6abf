"""What commbench takes of dask-cuda."""
