"""The structures most like another one, with an E-value (docs/nearest.md)."""
