"""Which mutants to make next: names, a model of measured ones, a ranking, and whether to trust it."""
