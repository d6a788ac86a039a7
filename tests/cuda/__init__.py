"""Tests that need a GPU: operators, random points and models, computed there and compared; the device.

pytest -m cuda                      where pytest is installed
python -m tests.cuda                where it is not; also --points N, --only operators|points|models|device

Each check runs in a process that can be lost: a kernel that faults leaves its process's CUDA context unusable.
"""
