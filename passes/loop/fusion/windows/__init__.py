"""Producers computed by windows of their reader: plan and writing."""
