"""What a number is worth: permutation, bootstrap, conformal intervals, the verdict and its words."""
