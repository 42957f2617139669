"""`python -m cuflash.bench`: cuflash and PyTorch's attention over a grid of problems. Needs PyTorch."""
