"""Tools on top of the reference: what a user does with encoders and runs. None of it is needed to read the paper."""
