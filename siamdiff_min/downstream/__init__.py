"""What is minimised and measured after pre-training: heads, losses and metrics of EC, PIP, MSP, RES and PSR."""
