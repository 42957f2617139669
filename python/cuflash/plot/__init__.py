"""`python -m cuflash.plot`: pictures and a report from the results files of `cuflash bench`. Needs matplotlib."""
