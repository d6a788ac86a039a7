"""NVIDIA GPUs as devices, through the driver library and nothing else.

    driver      libcuda by ctypes; errors
    context     one GPU: its attributes and its primary context
    memory      blocks on the GPU, and page-locked blocks on the host
    graph       CUDA graphs made node by node
    device      `CudaDevice` and its kernels
    recording   a sequence of calls as graphs: run, timed, profiled
    assembler   PTX to machine code (nvJitLink)
    detect      the GPUs of this machine as targets
    peak        the measured peak of a GPU

Nothing here is imported for a CPU, and libcuda is opened only when a GPU is requested.
"""
