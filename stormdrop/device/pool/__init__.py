"""The native thread pool of the host CPU."""
