"""Breaks the cluster on purpose and judges, from a recorded history alone, whether it kept its objectives."""
