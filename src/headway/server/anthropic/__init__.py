"""Anthropic's routes: /v1/messages, /v1/messages/count_tokens."""
