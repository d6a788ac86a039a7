"""Devices: the memory and the threads or streams that run kernels, for the host CPU and for NVIDIA GPUs."""
