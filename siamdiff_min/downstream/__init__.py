"""Downstream tasks: heads, losses and metrics of EC, PIP, MSP, RES and PSR."""
