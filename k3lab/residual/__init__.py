"""Residual topologies: what each sublayer reads of the depth below it, and how its output joins the stream."""
