"""OpenAI's routes: /v1/models, /v1/chat/completions, /v1/completions."""
