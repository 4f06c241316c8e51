"""The plain JSON routes: /basic_generate, /generate, /generate_stream, /tokenize, /detokenize."""
