"""Formats, repair and checks that the paper's data do not need: `PARTS` in the package's face names them."""
