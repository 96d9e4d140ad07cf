"""Resilience policies for LLM serving: plain asyncio and the standard library, usable around any async callable."""
