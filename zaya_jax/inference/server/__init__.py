"""The engine behind the OpenAI protocol: chat and text completions over HTTP."""
