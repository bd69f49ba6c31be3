"""A large replay that is killed and given again. `python -m benchmarks.replay`."""
