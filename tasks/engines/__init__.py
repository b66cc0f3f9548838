"""Engines: what serves a decoder, one file each (llama.cpp, vLLM, transformers); `tasks.model.engine` is what each can be asked, `tasks.checks` what it is."""
