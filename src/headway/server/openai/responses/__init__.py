"""OpenAI's /v1/responses: another shape of a chat, and a bounded store of what was answered."""
